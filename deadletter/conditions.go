package deadletter

import (
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
	c.AddText("tenant", outboxrow.Label(f.Tenant))
	c.AddText("aggregate_type", outboxrow.Label(f.AggregateType))
	c.AddText("aggregate_id", outboxrow.Label(f.AggregateID))
	c.AddText("event_type", outboxrow.Label(f.EventType))
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
