package poison

import (
	"context"
	"database/sql"

	"github.com/watermill-once/once/internal/operate"
	"github.com/watermill-once/once/internal/parked"
)

// window returns the part of the quarantine in which a call looks for the entries that
// match f. If the parameter newest is true, the part begins at the highest ID.
func (t *table) window(ctx context.Context, tx *sql.Tx, f Filter, newest bool) (operate.Window, error) {
	if err := t.dialect.InOrder(ctx, tx); err != nil {
		return operate.Window{}, err
	}
	f, err := t.narrowed(ctx, tx, f)
	if err != nil {
		return operate.Window{}, err
	}
	all := func(c *operate.Conditions) { t.add(c, f, parked.Quarantined) }
	if f.IDs != nil {
		return t.searched().Among(t.where(Filter{IDs: f.IDs}), all, len(f.IDs)), nil
	}
	leads, c := t.leads(f), t.where(f, parked.Quarantined)
	one := len(leads) == 1 && len(leads[0].Texts) == len(c.Texts)
	if f.MessageID != "" || one { // an index finds only entries that match
		return t.searched().Whole(c), nil
	}
	return t.searched().Window(ctx, tx, leads, all, operate.WindowRows, newest)
}

// replayed returns the part of the table in which a call looks for the replayed messages
// that match f.
func (t *table) replayed(ctx context.Context, tx *sql.Tx, f Filter) (operate.Window, error) {
	if err := t.dialect.InOrder(ctx, tx); err != nil {
		return operate.Window{}, err
	}
	add := func(c *operate.Conditions, f Filter) {
		t.add(c, f)
		c.Texts = append(c.Texts, "replays > 0", stateIn([]string{parked.Waiting, parked.Held}))
	}
	lead := &operate.Conditions{}
	add(lead, Filter{AfterID: f.AfterID})
	return t.searched().Window(ctx, tx, []*operate.Conditions{lead}, func(c *operate.Conditions) { add(c, f) }, operate.WindowRows, false)
}

func (t *table) searched() operate.Rows {
	return operate.Rows{Dialect: t.dialect, Name: `{parked}`, Columns: `id, consumer, topic, message_id, ordering_key, tenant,
		aggregate_type, aggregate_id, event_type, state, attempts, crashes, replays, replay_id, edited_from, origin, reason, error_type,
		fingerprint, due_at, created_at, first_failed_at, last_failed_at, finished_at`}
}

// leads returns each condition of f for which an index finds the entries in the order
// of their IDs. Conditions that usually match fewer entries come first.
func (t *table) leads(f Filter) (all []*operate.Conditions) {
	add := func(value string, lead Filter) {
		if value != "" {
			lead.AfterID, lead.untilID = f.AfterID, f.untilID
			all = append(all, t.where(lead, parked.Quarantined))
		}
	}
	add(f.AggregateID, Filter{AggregateID: f.AggregateID})
	add(f.Fingerprint, Filter{Fingerprint: f.Fingerprint})
	add(f.Tenant, Filter{Tenant: f.Tenant})
	add(f.ErrorType, Filter{ErrorType: f.ErrorType})
	add(f.EventType, Filter{EventType: f.EventType})
	add(f.AggregateType, Filter{AggregateType: f.AggregateType})
	add(f.Reason, Filter{Reason: f.Reason})
	add(f.Consumer+f.Topic, Filter{Consumer: f.Consumer, Topic: f.Topic})
	if len(all) == 0 {
		add("every entry", Filter{})
	}
	return all
}

// narrowed returns f with the IDs of the entries that failed between f.FailedAfter and
// f.FailedBefore. If there are many such entries, it returns f with a range of IDs,
// from the lowest to the highest of these IDs. If there are too many entries to find
// the range, it returns f unchanged.
func (t *table) narrowed(ctx context.Context, tx *sql.Tx, f Filter) (Filter, error) {
	if f.IDs != nil || f.MessageID != "" || f.FailedAfter.IsZero() && f.FailedBefore.IsZero() {
		return f, nil
	}
	at := &operate.Conditions{Texts: []string{stateIn([]string{parked.Quarantined})}}
	at.AddSpan(t.dialect, "last_failed_at", f.FailedAfter, f.FailedBefore)
	ids, few, err := t.searched().Few(ctx, tx, at)
	if err != nil || few {
		f.IDs = ids
		return f, err
	}
	first, last, known, err := t.searched().Span(ctx, tx, at)
	if known {
		f.AfterID, f.untilID = max(f.AfterID, first-1), last
	}
	return f, err
}
