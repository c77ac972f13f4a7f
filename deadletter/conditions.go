package deadletter

import (
	"context"
	"database/sql"

	"github.com/watermill-once/once/internal/operate"
	"github.com/watermill-once/once/internal/outboxrow"
)

// conditions returns the SQL conditions of f. It ignores Filter.AfterGroup, which
// selects groups, not rows.
func (t table) conditions(f Filter) *operate.Conditions {
	c := &operate.Conditions{}
	t.add(c, f)
	return c
}

func (t table) add(c *operate.Conditions, f Filter) {
	if f.IDs != nil {
		c.Add(`id IN {list %s bigint}`, t.dialect.List(f.IDs))
	}
	c.AddText("message_id", f.MessageID)
	c.AddText("topic", f.Topic)
	c.AddText("ordering_key", f.OrderingKey)
	c.AddText("reason", f.Reason)
	c.AddText(fingerprint, f.Fingerprint)
	aggregateType := "aggregate_type"
	if f.AggregateID != "" { // the index of the types would find more rows
		aggregateType += " || ''"
	}
	for _, label := range []struct{ column, value string }{
		{"tenant", f.Tenant}, {aggregateType, f.AggregateType}, {"aggregate_id", f.AggregateID}, {"event_type", f.EventType},
	} {
		if label.value != "" { // repeats the condition of the partial index
			c.Texts = append(c.Texts, label.column+` <> ''`)
		}
		c.AddText(label.column, outboxrow.Label(label.value))
	}
	if t.dead && !t.dialect.SQLite() { // repeats the expressions of the indexes
		if f.Topic != "" {
			c.Add(`left(topic, 255) = left(%s, 255)`, f.Topic)
		}
		if f.Fingerprint != "" {
			c.Add(`md5(`+fingerprint+`) = md5(%s)`, f.Fingerprint)
		}
	}
	after, before := t.times(f)
	c.AddSpan(t.dialect, t.arrived, after, before)
	if f.AfterID > 0 {
		c.Add(`id > %s`, f.AfterID)
	}
	if f.UntilID > 0 {
		c.Add(`id <= %s`, f.UntilID)
	}
}

// selected works like conditions. If f limits the times of rows, it adds conditions on
// the IDs, so that a query does not read the rows outside of these times.
func (t table) selected(ctx context.Context, tx *sql.Tx, f Filter) (*operate.Conditions, error) {
	after, before := t.times(f)
	if after.IsZero() && before.IsZero() {
		return t.conditions(f), nil
	}
	if err := t.dialect.InOrder(ctx, tx); err != nil {
		return &operate.Conditions{}, err
	}
	f, _, err := t.narrowed(ctx, tx, f)
	if err == nil && !t.dead {
		f, err = t.since(ctx, tx, f)
	}
	return t.conditions(f), err
}
