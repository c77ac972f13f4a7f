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

// Filter selects the messages that match all fields that are not empty.
type Filter struct {
	// All selects all messages. A call that changes messages refuses a Filter without any
	// condition unless All is true, because such a Filter may be a mistake.
	All bool

	// IDs are the IDs of rows, see Message.ID. If IDs is nil, rows with any ID match. A
	// list without elements matches no message.
	IDs []int64

	// Consumer and Topic are the consumer and the topic of the subscription.
	Consumer, Topic string

	// MessageID, Tenant and OrderingKey must be equal to the values of the message.
	MessageID, Tenant, OrderingKey string

	// State is one of the State constants. Calls that change messages can change only
	// waiting and held messages, so they refuse other states.
	State State

	// CreatedAfter (inclusive) and CreatedBefore (exclusive) limit the time at which a
	// message was stored, by the database's clock and in whole milliseconds.
	CreatedAfter, CreatedBefore time.Time

	// AfterID is the value of Next of the previous page. It is 0 for the first page.
	AfterID int64

	// Limit is the maximum number of messages to list or to change. Defaults to 100 for
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

// validateChange works like validate. It also returns an error for a Filter without All
// that selects all messages, and for a State in which the action changes no message.
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

// everything reports whether f has no condition, apart from the position of the page.
func (f Filter) everything() bool {
	return f.IDs == nil && f.Consumer == "" && f.Topic == "" && f.MessageID == "" && f.Tenant == "" && f.OrderingKey == "" &&
		f.State == "" && f.CreatedAfter.IsZero() && f.CreatedBefore.IsZero()
}

// conditions collects conditions of a query and their parameters.
type conditions struct {
	texts []string
	args  []any
}

// arg adds value to the parameters of the query, and returns the name of this
// parameter, for example "$1".
func (c *conditions) arg(value any) string {
	c.args = append(c.args, value)
	return "$" + strconv.Itoa(len(c.args))
}

// add adds a condition, and adds value to the parameters of the query. The %s in the
// condition becomes the name of this parameter.
func (c *conditions) add(condition string, value any) {
	c.texts = append(c.texts, fmt.Sprintf(condition, c.arg(value)))
}

func (c *conditions) where() string { return "WHERE " + strings.Join(c.texts, " AND ") }

// conditions adds the conditions of f, for rows with the alias p. No partial index
// matches these conditions, so the database reads the rows of the window by their ids.
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

// time returns the given time as a parameter that can be compared with the times in the
// table.
func (m *Messages) time(at time.Time) any {
	if m.dialect.SQLite() {
		return at.UnixMilli()
	}
	return at.Truncate(time.Millisecond)
}
