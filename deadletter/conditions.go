package deadletter

import (
	"context"
	"database/sql"

	"github.com/watermill-once/once/internal/operate"
	"github.com/watermill-once/once/internal/outboxrow"
)

// conditions returns the conditions of f. Filter.AfterGroup is not among them,
// because it selects groups, not rows.
func (t table) conditions(f Filter) *operate.Conditions {
	c := &operate.Conditions{}
	if f.IDs != nil {
		c.Add(`id IN {list %s bigint}`, t.dialect.List(f.IDs))
	}
	c.AddText("message_id", f.MessageID)
	c.AddText("topic", f.Topic)
	c.AddText("ordering_key", f.OrderingKey)
	c.AddText("reason", f.Reason)
	c.AddText(fingerprint, f.Fingerprint)
	c.AddText("aggregate_type", outboxrow.Label(f.AggregateType))
	for _, label := range []struct{ column, value string }{
		{"tenant", f.Tenant}, {"aggregate_id", f.AggregateID}, {"event_type", f.EventType},
	} {
		if label.value != "" { // the condition of the index
			c.Texts = append(c.Texts, label.column+` <> ''`)
		}
		c.AddText(label.column, outboxrow.Label(label.value))
	}
	if t.dead && !t.dialect.SQLite() { // the expressions of indexes
		if f.Topic != "" {
			c.Add(`left(topic, 255) = left(%s, 255)`, f.Topic)
		}
		if f.Fingerprint != "" {
			c.Add(`md5(`+fingerprint+`) = md5(%s)`, f.Fingerprint)
		}
	}
	after, before := f.SentAfter, f.SentBefore
	if t.dead {
		after, before = f.FailedAfter, f.FailedBefore
	}
	c.AddSpan(t.dialect, t.arrived, after, before)
	if f.AfterID > 0 {
		c.Add(`id > %s`, f.AfterID)
	}
	if f.UntilID > 0 {
		c.Add(`id <= %s`, f.UntilID)
	}
	return c
}

// selected returns the conditions of f. If f has a time of death, it adds the lowest and
// the highest ID of that time, which it finds with an index. Otherwise PostgreSQL, which
// reads letters in the order of their IDs, would also read all letters before that time.
func (t table) selected(ctx context.Context, tx *sql.Tx, f Filter) (*operate.Conditions, error) {
	c := t.conditions(f)
	if !t.dead || f.FailedAfter.IsZero() && f.FailedBefore.IsZero() {
		return c, nil
	}
	if err := t.dialect.InOrder(ctx, tx); err != nil {
		return nil, err
	}
	at := &operate.Conditions{}
	at.AddSpan(t.dialect, t.arrived, f.FailedAfter, f.FailedBefore)
	var first, last int64
	// Of id alone, PostgreSQL would look for the first match in the order of the primary key.
	err := t.query(ctx, tx, `SELECT COALESCE(MIN(id + 0), 0), COALESCE(MAX(id + 0), 0) FROM `+t.name+` `+at.Where(), at,
		func(rows *sql.Rows) error { return rows.Scan(&first, &last) })
	c.Add(`id >= %s`, first)
	c.Add(`id <= %s`, last)
	return c, err
}
