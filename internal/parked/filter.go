package parked

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/watermill-once/once/internal/disposition"
)

// Filter says which entries are meant. Fields that are empty match everything;
// an entry must match all others.
type Filter struct {
	// All says that everything is meant. To replay or discard what a Filter
	// without any other condition matches, which may be a mistake, it must be
	// set.
	All bool `json:"all,omitempty"`

	// IDs are those of the entries themselves.
	IDs []int64 `json:"ids,omitempty"`

	// Consumer is the name of the consumer that failed, Topic what it had
	// subscribed to.
	Consumer string `json:"consumer,omitempty"`
	Topic    string `json:"topic,omitempty"`

	// MessageID is the message's own id, Tenant whose message it is.
	MessageID string `json:"message_id,omitempty"`
	Tenant    string `json:"tenant,omitempty"`

	// Reason, ErrorType and Fingerprint are those of the last failure. A Reason
	// that there is not is refused: a misspelt one would match nothing.
	Reason      string `json:"reason,omitempty"`
	ErrorType   string `json:"error_type,omitempty"`
	Fingerprint string `json:"fingerprint,omitempty"`

	// FailedAfter and FailedBefore are about the last failure: from the one on
	// and before the other. Whole milliseconds, of the database's clock.
	FailedAfter  time.Time `json:"failed_after,omitzero"`
	FailedBefore time.Time `json:"failed_before,omitzero"`

	// AfterID is the ID of the last entry of the page before: entries come in
	// order of their ID. AfterGroup is the Fingerprint of the last group of
	// the page before: groups come in order of their Fingerprint.
	AfterID    int64  `json:"after_id,omitempty"`
	AfterGroup string `json:"-"`

	// Limit is the most entries, or groups, that are meant. Defaults to 100
	// where they are listed, and to all where something is done with them.
	Limit int `json:"limit,omitempty"`
}

// Validate names every field that cannot be used.
func (f Filter) Validate() error {
	var errs []error
	if f.Limit < 0 {
		errs = append(errs, fmt.Errorf("Limit is %d: negative", f.Limit))
	}
	if f.AfterID < 0 {
		errs = append(errs, fmt.Errorf("AfterID is %d: negative", f.AfterID))
	}
	if f.Reason != "" && !slices.Contains(disposition.Reasons, f.Reason) {
		errs = append(errs, fmt.Errorf("Reason is %q, none of %s", f.Reason, strings.Join(disposition.Reasons, ", ")))
	}
	if !f.FailedBefore.IsZero() && !f.FailedAfter.Before(f.FailedBefore) {
		errs = append(errs, errors.New("FailedBefore is not after FailedAfter"))
	}
	if f.All && !f.everything() {
		errs = append(errs, errors.New("All is set together with conditions"))
	}
	return errors.Join(errs...)
}

// ValidateAct also refuses a Filter that means everything without saying so.
func (f Filter) ValidateAct() error {
	err := f.Validate()
	if f.everything() && !f.All {
		err = errors.Join(err, errors.New("the Filter has no condition: set All if everything is meant"))
	}
	return err
}

// everything says that no entry is left out. A list of IDs that is there and
// empty leaves out all of them.
func (f Filter) everything() bool {
	return f.IDs == nil && f.Consumer == "" && f.Topic == "" && f.MessageID == "" && f.Tenant == "" &&
		f.Reason == "" && f.ErrorType == "" && f.Fingerprint == "" && f.FailedAfter.IsZero() && f.FailedBefore.IsZero()
}

// asStored has the texts as rows have them.
func (f Filter) asStored() Filter {
	for _, text := range []*string{&f.Consumer, &f.Topic, &f.MessageID, &f.Tenant, &f.Reason, &f.ErrorType, &f.Fingerprint} {
		*text = Clean(*text, maxName)
	}
	return f
}

// condition is part of a query, with its arguments.
type condition struct {
	clauses []string
	args    []any
}

// add adds a clause, in which %s is the argument.
func (c *condition) add(clause string, arg any) {
	c.args = append(c.args, arg)
	c.clauses = append(c.clauses, fmt.Sprintf(clause, fmt.Sprintf("$%d", len(c.args))))
}

// arg adds an argument for what comes behind the condition.
func (c *condition) arg(value any) string {
	c.args = append(c.args, value)
	return fmt.Sprintf("$%d", len(c.args))
}

func (c *condition) String() string { return strings.Join(c.clauses, " AND ") }

// where is the condition of a Filter. Only what is asked for is part of it, so
// that the database sees which index fits. The states are ours, and written
// out, or no partial index would.
func (s *Store) where(f Filter, states ...string) *condition {
	c := &condition{clauses: []string{"id > 0"}}
	if f.MessageID != "" { // as its index has it; every other one stays out of the question
		c.clauses = []string{"message_id <> ''"}
	}
	if len(states) > 0 && states[0] != "" {
		c.clauses = append(c.clauses, f.within(states))
	}
	if f.IDs != nil {
		c.add("id {among %s bigint}", s.dialect.List(f.IDs))
	}
	f = f.asStored()
	for _, text := range []struct{ column, value string }{
		{"consumer", f.Consumer},
		{"topic", f.Topic},
		{"message_id", f.MessageID},
		{"tenant", f.Tenant},
		{"reason", f.Reason},
		{"error_type", f.ErrorType},
		{"fingerprint", f.Fingerprint},
	} {
		if text.value != "" {
			c.add(text.column+" = %s", text.value)
		}
	}
	if !f.FailedAfter.IsZero() {
		c.add("{millis last_failed_at} >= %s", f.FailedAfter.UnixMilli())
	}
	if !f.FailedBefore.IsZero() {
		c.add("{millis last_failed_at} < %s", f.FailedBefore.UnixMilli())
	}
	if f.AfterID > 0 {
		c.add("id > %s", f.AfterID)
	}
	return c
}

// within is the condition of the states. A planner that has not seen the table
// for long takes an index of all that is in quarantine for a good one: so none
// fits where the message is named, and that of the consumers only where nothing
// better is.
func (f Filter) within(states []string) string {
	switch {
	case f.MessageID != "":
		return "'' || " + in(states)
	case f.Consumer != "" && f.Fingerprint == "" && slices.Equal(states, []string{Quarantined}):
		return "state || '' = 'quarantined'"
	default:
		return in(states)
	}
}

func in(states []string) string {
	if len(states) == 1 { // SQLite does not see that IN is the same, and so no index
		return "state = '" + states[0] + "'"
	}
	return "state IN ('" + strings.Join(states, "', '") + "')"
}

// limit is how many entries an act is about.
func (f Filter) limit() int64 {
	if f.Limit == 0 {
		return 1 << 62
	}
	return int64(f.Limit)
}
