package pending

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/watermill-once/once/internal/meta"
	"github.com/watermill-once/once/internal/operate"
	"github.com/watermill-once/once/internal/outboxrow"
)

// Filter selects messages: those that match every field that is not empty.
type Filter struct {
	// All selects everything. A call that changes messages refuses a Filter without
	// another condition unless All is set, because such a Filter may be a mistake.
	All bool

	// IDs are positions in the outbox, see Message.ID. nil is no condition; a list
	// without elements matches nothing.
	IDs []int64

	// MessageID, Topic and OrderingKey are those of the message.
	MessageID   string
	Topic       string
	OrderingKey string

	// Tenant, AggregateType, AggregateID and EventType are values in the metadata
	// of the message, see outbox.SetTenant, SetAggregate and SetEventType.
	Tenant        string
	AggregateType string
	AggregateID   string
	EventType     string

	// State is one of the State constants.
	State State

	// CreatedAfter and CreatedBefore bound the time at which a message was written:
	// CreatedAfter itself matches, CreatedBefore does not. Both are whole
	// milliseconds of the database's clock.
	CreatedAfter, CreatedBefore time.Time

	// AfterID is where to begin: Next of the page before.
	AfterID int64

	// Limit is the largest number of messages to list, retry or cancel. Defaults to
	// 100 for List, and to no limit for the other calls.
	Limit int
}

func (f Filter) validate() error {
	errs := []error{f.selection().Validate(), operate.ValidateSpan("Created", f.CreatedAfter, f.CreatedBefore)}
	states := []State{"", Due, BackingOff, Delayed, Blocked}
	if !slices.Contains(states, f.State) { // a misspelt state would match nothing
		errs = append(errs, fmt.Errorf("State is %q, none of %s, %s, %s, %s", f.State, Due, BackingOff, Delayed, Blocked))
	}
	return errors.Join(errs...)
}

// validateChange also refuses a Filter that selects everything without All.
func (f Filter) validateChange() error {
	return errors.Join(f.validate(), f.selection().ValidateChange())
}

func (f Filter) selection() operate.Selection {
	return operate.Selection{Limit: f.Limit, AfterID: f.AfterID, All: f.All, Everything: f.everything()}
}

// everything reports whether f selects every message of every page.
func (f Filter) everything() bool {
	return f.IDs == nil && f.MessageID == "" && f.Topic == "" && f.OrderingKey == "" && f.State == "" &&
		f.Tenant == "" && f.AggregateType == "" && f.AggregateID == "" && f.EventType == "" &&
		f.CreatedAfter.IsZero() && f.CreatedBefore.IsZero()
}

// conditions adds the conditions of f on row o.
func (m *Messages) conditions(c *operate.Conditions, f Filter) {
	c.Add(`o.position > %s`, f.AfterID)
	if f.IDs != nil {
		c.Add(`o.position {among %s bigint}`, m.dialect.List(f.IDs))
	}
	c.AddText("o.message_id", f.MessageID)
	c.AddText("o.topic", f.Topic)
	c.AddText("o.ordering_key", f.OrderingKey)
	c.AddText(outboxrow.MetadataField(m.dialect, meta.TenantID), f.Tenant)
	c.AddText(outboxrow.MetadataField(m.dialect, meta.AggregateType), f.AggregateType)
	c.AddText(outboxrow.MetadataField(m.dialect, meta.AggregateID), f.AggregateID)
	c.AddText(outboxrow.MetadataField(m.dialect, meta.EventType), f.EventType)
	c.AddText(outboxrow.State, string(f.State))
	c.AddSpan(m.dialect, "o.created_at", f.CreatedAfter, f.CreatedBefore)
}
