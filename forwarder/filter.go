package forwarder

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/watermill-once/once/internal/meta"
)

// Filter says which dead letters, or which messages of the sent log, are
// meant: those that match every field that is not empty.
type Filter struct {
	// All says that everything is meant. To act by a Filter without another
	// condition, which may be a mistake, it must be set.
	All bool

	// IDs are those of the rows, not of their messages. A list without
	// elements matches nothing; nil is no condition.
	IDs []int64

	// MessageID, Topic and OrderingKey are the message's.
	MessageID   string
	Topic       string
	OrderingKey string

	// Tenant, AggregateType, AggregateID and EventType are what the message's
	// metadata says, see outbox.SetTenant, SetAggregate and SetEventType.
	Tenant        string
	AggregateType string
	AggregateID   string
	EventType     string

	// Reason is why a letter is dead: one of the Reason constants. Only for dead
	// letters.
	Reason string

	// FailedAfter and FailedBefore are about when a letter died: from the one on
	// and before the other. Whole milliseconds, of the database's clock. Only for
	// dead letters.
	FailedAfter, FailedBefore time.Time

	// SentAfter and SentBefore are the same about when a message was sent. Only
	// for the sent log.
	SentAfter, SentBefore time.Time

	// AfterID is the ID of the last row of the page before: rows come in order
	// of their ID.
	AfterID int64

	// Limit is the most rows that are listed, put back or discarded. Defaults to
	// 100 where they are listed, and to all where something is done with them.
	Limit int
}

// validate names every field that cannot be used with the archive.
func (a archive) validate(f Filter) error {
	var errs []error
	if f.Limit < 0 {
		errs = append(errs, fmt.Errorf("Limit is %d: negative", f.Limit))
	}
	if f.AfterID < 0 {
		errs = append(errs, fmt.Errorf("AfterID is %d: negative", f.AfterID))
	}
	if f.All && !a.everything(f) {
		errs = append(errs, errors.New("All is set together with conditions"))
	}
	failed, sent := !f.FailedAfter.IsZero() || !f.FailedBefore.IsZero(), !f.SentAfter.IsZero() || !f.SentBefore.IsZero()
	switch {
	case !a.dead && f.Reason != "":
		errs = append(errs, errors.New("Reason is set: what was sent has none"))
	case !a.dead && failed:
		errs = append(errs, errors.New("FailedAfter or FailedBefore is set: for what was sent there are SentAfter and SentBefore"))
	case a.dead && sent:
		errs = append(errs, errors.New("SentAfter or SentBefore is set: for dead letters there are FailedAfter and FailedBefore"))
	case f.Reason != "" && !slices.Contains(reasons, f.Reason): // a misspelt one would match nothing
		errs = append(errs, fmt.Errorf("Reason is %q, none of %s", f.Reason, strings.Join(reasons, ", ")))
	}
	if !f.FailedBefore.IsZero() && !f.FailedAfter.Before(f.FailedBefore) {
		errs = append(errs, errors.New("FailedBefore is not after FailedAfter"))
	}
	if !f.SentBefore.IsZero() && !f.SentAfter.Before(f.SentBefore) {
		errs = append(errs, errors.New("SentBefore is not after SentAfter"))
	}
	return errors.Join(errs...)
}

// validateAct also refuses a Filter that means everything without saying so.
func (a archive) validateAct(f Filter) error {
	err := a.validate(f)
	if a.everything(f) && !f.All {
		err = errors.Join(err, errors.New("the Filter has no condition: set All if everything is meant"))
	}
	return err
}

// everything says that no row is left out, but for a page.
func (a archive) everything(f Filter) bool {
	f.AfterID = 0
	return len(a.conditions(f).texts) == 0
}

// conditions collects conditions and their parameters.
type conditions struct {
	texts []string
	args  []any
}

// arg adds a parameter and returns its name.
func (c *conditions) arg(value any) string {
	c.args = append(c.args, value)
	return "$" + strconv.Itoa(len(c.args))
}

// add adds a condition; its %s is the parameter.
func (c *conditions) add(condition string, value any) {
	c.texts = append(c.texts, fmt.Sprintf(condition, c.arg(value)))
}

func (c *conditions) where() string {
	if len(c.texts) == 0 {
		return ""
	}
	return "WHERE " + strings.Join(c.texts, " AND ")
}

// conditions are those of f on the archive's table.
func (a archive) conditions(f Filter) *conditions {
	c := &conditions{}
	if f.IDs != nil {
		c.add(`id IN {list %s bigint}`, a.store.dialect.List(f.IDs))
	}
	for _, field := range []struct{ column, value string }{
		{"message_id", f.MessageID},
		{"topic", f.Topic},
		{"ordering_key", f.OrderingKey},
		{"reason", f.Reason},
		{a.metadataField(meta.TenantID), f.Tenant},
		{a.metadataField(meta.AggregateType), f.AggregateType},
		{a.metadataField(meta.AggregateID), f.AggregateID},
		{a.metadataField(meta.EventType), f.EventType},
	} {
		if field.value != "" {
			c.add(field.column+` = %s`, field.value)
		}
	}
	from, to := f.SentAfter, f.SentBefore
	if a.dead {
		from, to = f.FailedAfter, f.FailedBefore
	}
	if !from.IsZero() {
		c.add(a.at+` >= %s`, a.time(from))
	}
	if !to.IsZero() {
		c.add(a.at+` < %s`, a.time(to))
	}
	if f.AfterID > 0 {
		c.add(`id > %s`, f.AfterID)
	}
	return c
}

// metadataField is the value of a metadata key, or NULL.
func (a archive) metadataField(key string) string {
	field := `metadata ->> '` + key + `'`
	if a.store.dialect.SQLite() { // there it may be something else than JSON, and that an error
		return `CASE WHEN json_valid(metadata) THEN ` + field + ` END`
	}
	// A text with one of these escapes, which the outbox does not write, is an
	// error to PostgreSQL, whichever field is asked for.
	return `CASE WHEN CAST(metadata AS text) !~* '\\u(0000|d[89a-f])' THEN ` + field + ` END`
}

// time is a parameter to compare with a time of the table.
func (a archive) time(at time.Time) any {
	if a.store.dialect.SQLite() {
		return at.UnixMilli()
	}
	return at.Truncate(time.Millisecond)
}
