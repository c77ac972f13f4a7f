package deadletter

import (
	"cmp"
	"context"
	"database/sql"
	"math"

	"github.com/watermill-once/once/internal/operate"
)

// sentRows is the maximum number of rows of the sent log that a call reads.
const sentRows = 50_000

// window returns the part of the table in which a call looks for the rows that match f.
// If the parameter newest is true, the part begins at the highest ID.
func (t table) window(ctx context.Context, tx *sql.Tx, f Filter, newest bool) (operate.Window, error) {
	if err := t.dialect.InOrder(ctx, tx); err != nil {
		return operate.Window{}, err
	}
	f, known, err := t.narrowed(ctx, tx, f)
	if err == nil && !known {
		f, err = t.since(ctx, tx, f)
	}
	if err != nil {
		return operate.Window{}, err
	}
	all := func(c *operate.Conditions) { t.add(c, f) }
	if f.IDs != nil {
		return t.searched().Among(t.conditions(Filter{IDs: f.IDs}), all, len(f.IDs)), nil
	}
	leads, c := t.leads(f), t.conditions(f)
	one := len(leads) == 1 && len(leads[0].Texts) == len(c.Texts)
	if f.MessageID != "" || one { // an index finds only rows that match
		return t.searched().Whole(c), nil
	}
	rows := operate.WindowRows
	if !t.dead {
		rows = sentRows
	}
	return t.searched().Window(ctx, tx, leads, all, rows, newest)
}

// everywhere works like window, but returns the whole table. It is for calls that may
// take as long as they need.
func (t table) everywhere(ctx context.Context, tx *sql.Tx, f Filter, _ bool) (operate.Window, error) {
	c, err := t.selected(ctx, tx, f)
	if err == nil {
		err = t.dialect.InOrder(ctx, tx)
	}
	if err != nil {
		return operate.Window{}, err
	}
	return t.searched().Whole(c), nil
}

func (t table) searched() operate.Rows {
	own := `attempts, reason, unknown, died_at`
	if !t.dead {
		own = `sent_at`
	}
	return operate.Rows{Dialect: t.dialect, Name: t.name, Columns: `id, position, message_id, topic, ordering_key, created_at, tenant,
		aggregate_type, aggregate_id, event_type, causation_id, ` + own}
}

// readable returns the columns with contents of messages that a call reads. If the
// parameter all is true, these are all such columns. A condition on the fingerprint
// needs the column last_error, because the fingerprint is computed from the error.
func (t table) readable(f Filter, all bool) (columns []string) {
	if all {
		columns = []string{"payload", "metadata"}
	}
	if t.dead && (all || f.Fingerprint != "") {
		columns = append(columns, "last_error")
	}
	return columns
}

// leads returns each condition of f for which an index finds the rows in the order of
// their IDs. Conditions that usually match fewer rows come first.
func (t table) leads(f Filter) (all []*operate.Conditions) {
	add := func(value string, lead Filter) {
		if value != "" {
			lead.AfterID, lead.UntilID = f.AfterID, f.UntilID
			all = append(all, t.conditions(lead))
		}
	}
	if t.dead {
		add(f.AggregateID, Filter{AggregateID: f.AggregateID})
		add(f.Fingerprint, Filter{Fingerprint: f.Fingerprint})
		add(f.Tenant, Filter{Tenant: f.Tenant})
		add(f.EventType, Filter{EventType: f.EventType})
		add(f.AggregateType, Filter{AggregateType: f.AggregateType})
		add(f.Topic, Filter{Topic: f.Topic})
		add(f.Reason, Filter{Reason: f.Reason})
	}
	if len(all) == 0 {
		add("every row", Filter{})
	}
	return all
}

// narrowed adds limits on the IDs to f. To find these IDs, it uses indexes that are not
// in the order of the IDs. If few rows match the condition of such an index, narrowed
// returns f with the IDs of these rows. If many rows match the times in f, it returns f
// with the lowest and the highest ID of these rows. The result known is false if
// narrowed has found no limits on the IDs for the times in f.
func (t table) narrowed(ctx context.Context, tx *sql.Tx, f Filter) (_ Filter, known bool, err error) {
	if f.IDs != nil || f.MessageID != "" {
		return f, true, nil
	}
	times := t.conditions(Filter{FailedAfter: f.FailedAfter, FailedBefore: f.FailedBefore})
	indexed := []*operate.Conditions{t.conditions(Filter{OrderingKey: f.OrderingKey}), times}
	if !t.dead {
		indexed = nil
		if f.AggregateID != "" {
			indexed = append(indexed, t.conditions(Filter{AggregateType: f.AggregateType, AggregateID: f.AggregateID}))
		}
	}
	for _, c := range indexed {
		if len(c.Texts) == 0 {
			continue
		}
		if ids, few, err := t.searched().Few(ctx, tx, c); err != nil || few {
			f.IDs = ids
			return f, true, err
		}
	}
	if !t.dead || len(times.Texts) == 0 {
		return f, false, nil
	}
	first, last, known, err := t.searched().Span(ctx, tx, times)
	if known {
		f = f.within(first, last)
	}
	return f, known, err
}

// within returns f, limited to the IDs from first to last.
func (f Filter) within(first, last int64) Filter {
	f.AfterID = max(f.AfterID, first-1)
	if last < math.MaxInt64 {
		f.UntilID = min(last, cmp.Or(f.UntilID, last))
	}
	return f
}
