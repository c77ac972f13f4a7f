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

// Filter selects the messages that match all fields that are not empty.
type Filter struct {
	// All selects all messages. A call that changes messages refuses a Filter without any
	// condition unless All is true, because such a Filter may be a mistake.
	All bool

	// IDs are positions in the outbox, see Message.ID. If IDs is nil, messages at any
	// position match. A list without elements matches no message.
	IDs []int64

	// MessageID, Topic and OrderingKey must be equal to the values of the message.
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

	// CreatedAfter (inclusive) and CreatedBefore (exclusive) limit the time at which a
	// message was written, by the database's clock and in whole milliseconds.
	CreatedAfter, CreatedBefore time.Time

	// AfterID is the value of Next of the previous page. It is 0 for the first page.
	AfterID int64

	// Limit is the maximum number of messages to list, retry or cancel. Defaults to 100
	// for List, and to no limit for the other calls.
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

// validateChange works like validate. It also returns an error for a Filter without All
// that selects all messages.
func (f Filter) validateChange() error {
	return errors.Join(f.validate(), f.selection().ValidateChange())
}

func (f Filter) selection() operate.Selection {
	return operate.Selection{Limit: f.Limit, AfterID: f.AfterID, All: f.All, Everything: f.everything()}
}

// everything reports whether f has no condition, apart from the position of the page.
func (f Filter) everything() bool {
	return f.IDs == nil && f.MessageID == "" && f.Topic == "" && f.OrderingKey == "" && f.State == "" &&
		f.Tenant == "" && f.AggregateType == "" && f.AggregateID == "" && f.EventType == "" &&
		f.CreatedAfter.IsZero() && f.CreatedBefore.IsZero()
}

// conditions adds the conditions of f, for rows with the alias o.
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
