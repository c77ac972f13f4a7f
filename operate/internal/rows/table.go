package rows

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/watermill-once/once/internal/dialect"
	"github.com/watermill-once/once/operate"
)

// Table says which fields of a Filter a table supports, and which conditions they become.
type Table struct {
	Rows    string // name of the rows in errors, such as "dead letters"
	ID      string // column of the IDs, with the alias of the table
	IDs     string // condition of Filter.IDs; %s is the parameter
	Columns []Column
	Times   map[string]string // column for each pair of times, such as "Failed"

	// States and Reasons are the allowed values of State and Reason.
	States, Reasons []string

	// Ordered adds AfterID even if it is 0, so that rows are read in the order of the IDs.
	Ordered bool

	// Fixed returns conditions that do not come from a field, or nil.
	Fixed func(f operate.Filter) []string
}

// Column is the condition of one field.
type Column struct {
	Field string // name of the field, such as "Topic"
	SQL   string // column, or SQL expression, that must be equal to the value

	// Partial repeats the condition of a partial index: the column is not empty.
	Partial bool

	// Unless is a field with a better index. If it is set, no index matches the condition.
	Unless string

	// Format is the whole condition, if it is not that SQL is equal to the value.
	Format string

	// Stored returns the value as the table stores it. nil means as it is.
	Stored func(value string) string
}

func texts(f *operate.Filter) []struct {
	name  string
	value *string
} {
	return []struct {
		name  string
		value *string
	}{
		{"Consumer", &f.Consumer},
		{"Topic", &f.Topic},
		{"MessageID", &f.MessageID},
		{"OrderingKey", &f.OrderingKey},
		{"Tenant", &f.Tenant},
		{"AggregateType", &f.AggregateType},
		{"AggregateID", &f.AggregateID},
		{"EventType", &f.EventType},
		{"State", &f.State},
		{"Reason", &f.Reason},
		{"ErrorType", &f.ErrorType},
		{"Fingerprint", &f.Fingerprint},
	}
}

func text(f operate.Filter, name string) string {
	for _, field := range texts(&f) {
		if field.name == name {
			return *field.value
		}
	}
	return ""
}

type span struct {
	name          string
	after, before time.Time
}

func (s span) isZero() bool { return s.after.IsZero() && s.before.IsZero() }

func spans(f operate.Filter) []span {
	return []span{
		{"Created", f.CreatedAfter, f.CreatedBefore},
		{"Failed", f.FailedAfter, f.FailedBefore},
		{"Sent", f.SentAfter, f.SentBefore},
	}
}

// Everything reports whether f selects all rows, except for AfterID and UntilID.
func Everything(f operate.Filter) bool {
	return f.IDs == nil && !slices.ContainsFunc(spans(f), func(s span) bool { return !s.isZero() }) && !hasText(f)
}

func hasText(f operate.Filter) bool {
	for _, field := range texts(&f) {
		if *field.value != "" {
			return true
		}
	}
	return false
}

// Only returns a Filter with some of the text fields of f, and with its AfterID and UntilID.
func Only(f operate.Filter, names ...string) operate.Filter {
	only := operate.Filter{AfterID: f.AfterID, UntilID: f.UntilID}
	from := texts(&f)
	for i, field := range texts(&only) {
		if slices.Contains(names, field.name) {
			*field.value = *from[i].value
		}
	}
	return only
}

// Stored returns f with the values that the table stores.
func (t Table) Stored(f operate.Filter) operate.Filter {
	for _, field := range texts(&f) {
		i := slices.IndexFunc(t.Columns, func(c Column) bool { return c.Field == field.name && c.Stored != nil })
		if i >= 0 {
			*field.value = t.Columns[i].Stored(*field.value)
		}
	}
	return f
}

// CheckGroups returns an error that names each invalid field of f, for groups.
func (t Table) CheckGroups(f operate.Filter) error {
	var errs []error
	for _, number := range []struct {
		name  string
		value int64
	}{{"Limit", int64(f.Limit)}, {"AfterID", f.AfterID}, {"UntilID", f.UntilID}} {
		if number.value < 0 {
			errs = append(errs, fmt.Errorf("%s is %d: negative", number.name, number.value))
		}
	}
	if f.All && !Everything(f) {
		errs = append(errs, errors.New("All is set together with conditions"))
	}
	for _, field := range texts(&f) { // if a field were ignored, more rows than meant would match
		if *field.value != "" && !slices.ContainsFunc(t.Columns, func(c Column) bool { return c.Field == field.name }) {
			errs = append(errs, fmt.Errorf("%s is %q: %s have no such field", field.name, *field.value, t.Rows))
		}
	}
	for _, s := range spans(f) {
		if t.Times[s.name] == "" && !s.isZero() {
			errs = append(errs, fmt.Errorf("%[1]sAfter or %[1]sBefore is set: %[2]s have no such time", s.name, t.Rows))
		}
		if !s.before.IsZero() && !s.after.Before(s.before) {
			errs = append(errs, fmt.Errorf("%[1]sBefore is not after %[1]sAfter", s.name))
		}
	}
	return errors.Join(append(errs, oneOf("State", f.State, t.States), oneOf("Reason", f.Reason, t.Reasons))...)
}

func oneOf(field, value string, allowed []string) error {
	if value == "" || allowed == nil || slices.Contains(allowed, value) {
		return nil
	}
	return fmt.Errorf("%s is %q, none of %s", field, value, strings.Join(allowed, ", "))
}

// Check works like CheckGroups, for a call that returns or counts rows.
func (t Table) Check(f operate.Filter) error {
	err := t.CheckGroups(f)
	if f.AfterGroup != "" {
		err = errors.Join(err, errors.New("AfterGroup is set: only Groups returns pages of groups"))
	}
	return err
}

// CheckChange works like Check, for a call that changes rows: without All, a forgotten condition
// must not change every message.
func (t Table) CheckChange(f operate.Filter) error {
	err := t.Check(f)
	if Everything(f) && !f.All {
		err = errors.Join(err, errors.New("the Filter has no condition: set All to select everything"))
	}
	return err
}

// CheckPlan is for calls that do not know the outcome of a changed message.
func CheckPlan(p operate.Plan) error {
	err := p.Validate()
	if p.Canary > 0 || p.Window > 0 || p.StopOnFailure {
		err = errors.Join(err, errors.New("Plan.Canary, Window or StopOnFailure is set: "+
			"only a consumer knows whether a replayed message failed, use Rate"))
	}
	return err
}

// Distinct returns each ID once, in ascending order, in which all transactions lock rows, so that
// two cannot deadlock. Without IDs it fails.
func Distinct(ids []int64) ([]int64, error) {
	if len(ids) == 0 {
		return nil, errors.New("no IDs: name at least one")
	}
	return slices.Compact(slices.Sorted(slices.Values(ids))), nil
}

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

// Where returns the conditions of f.
func (s *Searched) Where(f operate.Filter) *Conditions {
	c := &Conditions{}
	c.Filter(s.Dialect, s.Table, f)
	return c
}
