package forwarder

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/watermill-once/once/internal/meta"
)

// Filter says which dead letters, or which messages of the sent log, are
// meant: those that match every field that is not empty.
type Filter struct {
	// All says that it is meant to match everything when no other field is
	// set. Only what changes something asks for it.
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

	// Reason is why a letter is dead, see [Letter]. The sent log knows none.
	Reason string

	// Since and Until bound when the letter died or the message was sent, by
	// the database's clock, to the millisecond. Since itself is within, Until
	// is not.
	Since, Until time.Time
}

// check refuses what the archive does not know.
func (a archive) check(f Filter) error {
	if f.Reason != "" && !a.reasons {
		return errors.New("Reason is set: what was sent has none")
	}
	return nil
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
	if !f.Since.IsZero() {
		c.add(a.at+` >= %s`, a.time(f.Since))
	}
	if !f.Until.IsZero() {
		c.add(a.at+` < %s`, a.time(f.Until))
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
