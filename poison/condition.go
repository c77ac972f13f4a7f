package poison

import (
	"context"
	"database/sql"
	"slices"
	"strings"

	"github.com/watermill-once/once/internal/operate"
	"github.com/watermill-once/once/internal/parked"
)

// where returns the condition of a Filter, for rows in one of the states; no
// state, or "", stands for any. It contains only the fields that are set, so
// that the database finds the index that fits. The states are constants of this
// library. They are literals, because a partial index does not match a parameter.
func (t *table) where(f Filter, states ...string) *operate.Conditions {
	c := &operate.Conditions{Texts: []string{"id > 0"}}
	if f.MessageID != "" { // the condition of the index on message ids; every other index must not fit
		c.Texts = []string{"message_id <> ''"}
	}
	if len(states) > 0 && states[0] != "" {
		c.Texts = append(c.Texts, f.withinStates(states))
	}
	if f.IDs != nil {
		c.Add("id {among %s bigint}", t.dialect.List(f.IDs))
	}
	f = f.asStored()
	for column, value := range map[string]string{"tenant": f.Tenant, "event_type": f.EventType} {
		if value != "" { // the condition of the index
			c.Texts = append(c.Texts, column+" <> ''")
		}
	}
	for _, text := range []struct{ column, value string }{
		{"consumer", f.Consumer},
		{"topic", f.Topic},
		{"message_id", f.MessageID},
		{"tenant", f.Tenant},
		{"aggregate_type", f.AggregateType},
		{"aggregate_id", f.AggregateID},
		{"event_type", f.EventType},
		{"reason", f.Reason},
		{"error_type", f.ErrorType},
		{"fingerprint", f.Fingerprint},
	} {
		if text.value != "" {
			c.Add(text.column+" = %s", text.value)
		}
	}
	c.AddSpan(t.dialect, "last_failed_at", f.FailedAfter, f.FailedBefore)
	if f.AfterID > 0 {
		c.Add("id > %s", f.AfterID)
	}
	return c
}

// selected returns the condition of a Filter for the quarantine. If the Filter has a time,
// it adds the lowest and the highest ID of that time, which it finds with an index.
// Otherwise PostgreSQL, which reads entries in the order of their IDs, would also read all
// entries before that time.
func (t *table) selected(ctx context.Context, tx *sql.Tx, f Filter) (*operate.Conditions, error) {
	where := t.where(f, parked.Quarantined)
	if f.FailedAfter.IsZero() && f.FailedBefore.IsZero() {
		return where, nil
	}
	if err := t.dialect.InOrder(ctx, tx); err != nil {
		return nil, err
	}
	at := &operate.Conditions{Texts: []string{stateIn([]string{parked.Quarantined})}}
	at.AddSpan(t.dialect, "last_failed_at", f.FailedAfter, f.FailedBefore)
	var first, last int64
	// Of id alone, PostgreSQL would look for the first match in the order of the primary key.
	err := tx.QueryRowContext(ctx, t.dialect.SQL(`SELECT COALESCE(MIN(id + 0), 0), COALESCE(MAX(id + 0), 0) FROM {parked} WHERE `+
		at.String()), at.Args...).Scan(&first, &last)
	where.Add("id >= %s", first)
	where.Add("id <= %s", last)
	return where, err
}

// withinStates returns the condition of the states. A planner with old
// statistics prefers the index of all quarantined rows. So the condition matches
// no index of states if the message is named, and matches the index of the
// consumers only if no better index fits. The states are at rest, so the condition
// of an aggregate can match that of its index.
func (f Filter) withinStates(states []string) string {
	switch {
	case f.MessageID != "":
		return "'' || " + stateIn(states)
	case f.AggregateID != "":
		return "aggregate_id <> '' AND " + parked.AtRest + " AND '' || " + stateIn(states)
	case f.Consumer != "" && f.Fingerprint+f.Tenant+f.EventType == "" && slices.Equal(states, []string{parked.Quarantined}):
		return "state || '' = 'quarantined'"
	default:
		return stateIn(states)
	}
}

func stateIn(states []string) string {
	if len(states) == 1 { // SQLite finds no partial index for IN with one element
		return "state = '" + states[0] + "'"
	}
	return "state IN ('" + strings.Join(states, "', '") + "')"
}
