package rows

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/watermill-once/once/internal/dialect"
	"github.com/watermill-once/once/operate"
)

// Conditions collects the conditions of a query and their parameters.
type Conditions struct {
	Texts []string
	Args  []any
}

// Arg adds a parameter to the query, and returns its placeholder, such as "$1".
func (c *Conditions) Arg(value any) string {
	c.Args = append(c.Args, value)
	return "$" + strconv.Itoa(len(c.Args))
}

// Add adds a condition, in which %s becomes the placeholder of value.
func (c *Conditions) Add(condition string, value any) {
	c.Texts = append(c.Texts, fmt.Sprintf(condition, c.Arg(value)))
}

// AddText adds the condition that column has this value, unless it is "".
func (c *Conditions) AddText(column, value string) {
	if value != "" {
		c.Add(column+` = %s`, value)
	}
}

// AddSpan adds column >= after and column < before, unless they are zero.
func (c *Conditions) AddSpan(d dialect.Dialect, column string, after, before time.Time) {
	if !after.IsZero() {
		c.Add(column+` >= %s`, TimeArg(d, after))
	}
	if !before.IsZero() {
		c.Add(column+` < %s`, TimeArg(d, before))
	}
}

// Filter adds the conditions of f, for rows of the table t.
func (c *Conditions) Filter(d dialect.Dialect, t Table, f operate.Filter) {
	if t.Fixed != nil {
		c.Texts = append(c.Texts, t.Fixed(f)...)
	}
	if f.IDs != nil {
		c.Add(t.IDs, d.List(f.IDs))
	}
	stored := t.Stored(f)
	for _, column := range t.Columns {
		value, name := text(stored, column.Field), column.SQL
		if value == "" {
			continue
		}
		if column.Unless != "" && text(f, column.Unless) != "" {
			name += " || ''"
		}
		if column.Partial {
			c.Texts = append(c.Texts, name+` <> ''`)
		}
		if column.Format != "" {
			c.Add(column.Format, value)
		} else {
			c.Add(name+` = %s`, value)
		}
	}
	for _, s := range spans(f) {
		c.AddSpan(d, t.Times[s.name], s.after, s.before)
	}
	if f.AfterID > 0 || t.Ordered {
		c.Add(t.ID+` > %s`, f.AfterID)
	}
	if f.UntilID > 0 {
		c.Add(t.ID+` <= %s`, f.UntilID)
	}
}

// String returns the conditions without WHERE, or "".
func (c *Conditions) String() string { return strings.Join(c.Texts, " AND ") }

// Where returns the WHERE clause, or "" if there is no condition.
func (c *Conditions) Where() string {
	if len(c.Texts) == 0 {
		return ""
	}
	return "WHERE " + c.String()
}

// TimeArg returns a parameter to compare with the times in a table, in whole milliseconds.
func TimeArg(d dialect.Dialect, at time.Time) any {
	if d.SQLite() {
		return at.UnixMilli()
	}
	return at.Truncate(time.Millisecond)
}
