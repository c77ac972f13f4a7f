package deadletter

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/watermill-once/once/internal/meta"
)

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

func (c *conditions) where() string {
	if len(c.texts) == 0 {
		return ""
	}
	return "WHERE " + strings.Join(c.texts, " AND ")
}

// conditions returns the conditions of f. Filter.AfterGroup is not among them,
// because it selects groups, not rows.
func (t table) conditions(f Filter) *conditions {
	c := &conditions{}
	if f.IDs != nil {
		c.add(`id IN {list %s bigint}`, t.dialect.List(f.IDs))
	}
	for _, field := range []struct{ column, value string }{
		{"message_id", f.MessageID},
		{"topic", f.Topic},
		{"ordering_key", f.OrderingKey},
		{"reason", f.Reason},
		{fingerprint, f.Fingerprint},
		{t.metadataField(meta.TenantID), f.Tenant},
		{t.metadataField(meta.AggregateType), f.AggregateType},
		{t.metadataField(meta.AggregateID), f.AggregateID},
		{t.metadataField(meta.EventType), f.EventType},
	} {
		if field.value != "" {
			c.add(field.column+` = %s`, field.value)
		}
	}
	from, to := f.SentAfter, f.SentBefore
	if t.dead {
		from, to = f.FailedAfter, f.FailedBefore
	}
	if !from.IsZero() {
		c.add(t.arrived+` >= %s`, t.time(from))
	}
	if !to.IsZero() {
		c.add(t.arrived+` < %s`, t.time(to))
	}
	if f.AfterID > 0 {
		c.add(`id > %s`, f.AfterID)
	}
	return c
}

// metadataField returns an expression for the value of a metadata key, or NULL.
func (t table) metadataField(key string) string {
	field := `metadata ->> '` + key + `'`
	if t.dialect.SQLite() { // where the column may hold other text than JSON, and ->> would fail
		return `CASE WHEN json_valid(metadata) THEN ` + field + ` END`
	}
	// PostgreSQL fails at a text with one of these escapes, whichever field is
	// read. Package outbox never writes them.
	return `CASE WHEN CAST(metadata AS text) !~* '\\u(0000|d[89a-f])' THEN ` + field + ` END`
}

// time returns a parameter that can be compared with a time of the table.
func (t table) time(at time.Time) any {
	if t.dialect.SQLite() {
		return at.UnixMilli()
	}
	return at.Truncate(time.Millisecond)
}
