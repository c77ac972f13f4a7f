package parked

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	store "github.com/watermill-once/once/internal/parked"
)

// Filter selects messages: those that match every field that is not empty.
type Filter struct {
	// All selects everything. A call that changes messages refuses a Filter without
	// another condition unless All is set, because such a Filter may be a mistake.
	All bool

	// IDs are those of rows, see Message.ID. nil is no condition; a list without
	// elements matches nothing.
	IDs []int64

	// Consumer and Topic are those of the subscription.
	Consumer, Topic string

	// MessageID, Tenant and OrderingKey are those of the message.
	MessageID, Tenant, OrderingKey string

	// State is one of the State constants. The calls that change messages change
	// waiting and held messages only, and refuse the other states.
	State State

	// CreatedAfter and CreatedBefore bound the time at which a message was stored:
	// CreatedAfter itself matches, CreatedBefore does not. Both are whole milliseconds
	// of the database's clock.
	CreatedAfter, CreatedBefore time.Time

	// AfterID is where to begin: Next of the page before.
	AfterID int64

	// Limit is the largest number of messages to list or to change. Defaults to 100 for
	// List, and to no limit for the other calls.
	Limit int
}

func (f Filter) validate() error {
	var errs []error
	if f.Limit < 0 {
		errs = append(errs, fmt.Errorf("Limit is %d: negative", f.Limit))
	}
	if f.AfterID < 0 {
		errs = append(errs, fmt.Errorf("AfterID is %d: negative", f.AfterID))
	}
	if f.All && !f.everything() {
		errs = append(errs, errors.New("All is set together with conditions"))
	}
	states := []State{"", Waiting, Held, Quarantined, Resolved, Discarded}
	if !slices.Contains(states, f.State) { // a misspelt state would match nothing
		errs = append(errs, fmt.Errorf("State is %q, none of %s, %s, %s, %s, %s",
			f.State, Waiting, Held, Quarantined, Resolved, Discarded))
	}
	if !f.CreatedBefore.IsZero() && !f.CreatedAfter.Before(f.CreatedBefore) {
		errs = append(errs, errors.New("CreatedBefore is not after CreatedAfter"))
	}
	return errors.Join(errs...)
}

// validateChange also refuses a Filter that selects everything without All, and
// states in which the action changes no message.
func (f Filter) validateChange(do Action) error {
	err := f.validate()
	if f.everything() && !f.All {
		err = errors.Join(err, errors.New("the Filter has no condition: set All to select everything"))
	}
	switch {
	case f.State == "" || f.State == Waiting || f.State == Held && do != RunNow:
	case f.State == Held:
		err = errors.Join(err, errors.New(`State is "held": a held message runs after the messages before it`))
	case f.State == Quarantined:
		err = errors.Join(err, errors.New(`State is "quarantined": use package poison for messages in quarantine`))
	default:
		err = errors.Join(err, fmt.Errorf("State is %q: such a message does not change any more", f.State))
	}
	return err
}

// everything reports whether f selects every message of every page.
func (f Filter) everything() bool {
	return f.IDs == nil && f.Consumer == "" && f.Topic == "" && f.MessageID == "" && f.Tenant == "" && f.OrderingKey == "" &&
		f.State == "" && f.CreatedAfter.IsZero() && f.CreatedBefore.IsZero()
}

// conditions collects conditions of a query and their parameters.
type conditions struct {
	texts []string
	args  []any
}

// arg adds a parameter and returns its name.
func (c *conditions) arg(value any) string {
	c.args = append(c.args, value)
	return "$" + strconv.Itoa(len(c.args))
}

// add adds a condition, in which %s is the parameter.
func (c *conditions) add(condition string, value any) {
	c.texts = append(c.texts, fmt.Sprintf(condition, c.arg(value)))
}

func (c *conditions) where() string { return "WHERE " + strings.Join(c.texts, " AND ") }

// conditions adds the conditions of f on row p. No partial index fits them, so that
// the database reads the rows of the window by their ids.
func (m *Messages) conditions(c *conditions, f Filter) {
	c.add(`p.id > %s`, f.AfterID)
	if f.IDs != nil {
		c.add(`p.id {among %s bigint}`, m.dialect.List(f.IDs))
	}
	for _, field := range []struct{ column, value string }{
		{"p.consumer", f.Consumer},
		{"p.topic", f.Topic},
		{"p.message_id", f.MessageID},
		{"p.tenant", f.Tenant},
		{"p.ordering_key", f.OrderingKey},
		{"'' || p.state", string(f.State)},
	} {
		if field.value != "" {
			c.add(field.column+` = %s`, store.Clean(field.value, store.MaxName))
		}
	}
	if !f.CreatedAfter.IsZero() {
		c.add(`p.created_at >= %s`, m.time(f.CreatedAfter))
	}
	if !f.CreatedBefore.IsZero() {
		c.add(`p.created_at < %s`, m.time(f.CreatedBefore))
	}
}

// time returns a parameter that can be compared with a time of the table.
func (m *Messages) time(at time.Time) any {
	if m.dialect.SQLite() {
		return at.UnixMilli()
	}
	return at.Truncate(time.Millisecond)
}
