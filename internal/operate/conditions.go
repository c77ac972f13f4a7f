package operate

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/watermill-once/once/internal/dialect"
)

// Conditions collects the conditions of a query and their parameters.
type Conditions struct {
	Texts []string
	Args  []any
}

// Arg adds value to the parameters of the query, and returns the placeholder of this
// parameter, for example "$1".
func (c *Conditions) Arg(value any) string {
	c.Args = append(c.Args, value)
	return "$" + strconv.Itoa(len(c.Args))
}

// Add adds a condition, and adds value to the parameters of the query. The %s in the
// condition becomes the placeholder of this parameter.
func (c *Conditions) Add(condition string, value any) {
	c.Texts = append(c.Texts, fmt.Sprintf(condition, c.Arg(value)))
}

// AddText adds the condition that column has the given value. If value is "", it does
// nothing.
func (c *Conditions) AddText(column, value string) {
	if value != "" {
		c.Add(column+` = %s`, value)
	}
}

// AddSpan adds the conditions column >= after and column < before. A zero time adds no
// condition.
func (c *Conditions) AddSpan(d dialect.Dialect, column string, after, before time.Time) {
	if !after.IsZero() {
		c.Add(column+` >= %s`, Time(d, after))
	}
	if !before.IsZero() {
		c.Add(column+` < %s`, Time(d, before))
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

// Time returns the given time, in whole milliseconds, as a parameter that can be
// compared with the times in a table.
func Time(d dialect.Dialect, at time.Time) any {
	if d.SQLite() {
		return at.UnixMilli()
	}
	return at.Truncate(time.Millisecond)
}
