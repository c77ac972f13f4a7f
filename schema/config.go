package schema

import (
	"cmp"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"sync"
)

// Dialect is a kind of database.
type Dialect string

const (
	PostgreSQL Dialect = "postgres"
	SQLite     Dialect = "sqlite"
)

// Layout is how the inbox or the sent log is stored. It determines how expired rows are deleted.
type Layout string

const (
	// Plain is a single table. Expired ids are deleted row by row. It works with any
	// ids.
	Plain Layout = "plain"

	// ByDay is a table with one partition for each day, dropped when the day has expired. It is
	// made for ids that begin with their time: UUIDs of version 7 in lower case, such as those of
	// outbox.NewID. All other ids share an extra partition, in which expired ids are deleted row by
	// row. PostgreSQL only.
	ByDay Layout = "by_day"
)

const (
	defaultPrefix = "once_"

	// maxIdentifier is NAMEDATALEN - 1. PostgreSQL silently truncates longer names, so two long
	// prefixes would share their tables.
	maxIdentifier = 63
)

var identifier = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

// Config contains the names of the tables and the kind of database. Use the same Config
// in all packages that use one database. The zero value means PostgreSQL, the
// connection's search path, and the prefix "once_".
type Config struct {
	// Dialect is the kind of database. Defaults to PostgreSQL.
	Dialect Dialect

	// Schema is the PostgreSQL schema that contains the tables. It has at most 63 letters, digits
	// and underscores, and must be "" for SQLite. Defaults to the schema of the connection's search
	// path that contains the tables. If no schema contains them, [Up] creates them in the first
	// one.
	Schema string

	// Prefix is the beginning of the name of every table and index: letters, digits and
	// underscores, with the longest name at most 63 bytes. Defaults to "once_".
	Prefix string

	// Inbox is the layout of the inbox. [Up] can convert a plain inbox with its ids to
	// ByDay, but not back. Use the same value for all packages. Defaults to Plain.
	Inbox Layout

	// Sent is the layout of the sent log. [Up] can convert a plain log to ByDay, but not
	// back. The other packages work with both layouts, and detect the layout of the table.
	// Defaults to the layout that the table has. A new table is Plain.
	Sent Layout
}

// WithDefaults returns c with default values in its empty fields.
func (c Config) WithDefaults() Config {
	c.Dialect = cmp.Or(c.Dialect, PostgreSQL)
	c.Prefix = cmp.Or(c.Prefix, defaultPrefix)
	c.Inbox = cmp.Or(c.Inbox, Plain)
	return c
}

// Validate returns one error that names every invalid field, or nil.
func (c Config) Validate() error {
	c = c.WithDefaults()
	var errs []error
	if c.Dialect != PostgreSQL && c.Dialect != SQLite {
		errs = append(errs, fmt.Errorf("schema: Dialect is %q: use %q or %q", c.Dialect, PostgreSQL, SQLite))
	}
	if c.Schema != "" {
		switch {
		case c.Dialect == SQLite:
			errs = append(errs, fmt.Errorf("schema: Schema %q: SQLite has no schemas, leave it empty", c.Schema))
		case !identifier.MatchString(c.Schema):
			errs = append(errs, fmt.Errorf("schema: Schema %q: only letters, digits and underscores, not starting with a digit", c.Schema))
		case len(c.Schema) > maxIdentifier:
			errs = append(errs, fmt.Errorf("schema: Schema %q is longer than %d bytes", c.Schema, maxIdentifier))
		}
	}
	if !identifier.MatchString(c.Prefix) {
		errs = append(errs, fmt.Errorf("schema: Prefix %q: only letters, digits and underscores, not starting with a digit", c.Prefix))
	}
	if limit := maxIdentifier - longestName(); len(c.Prefix) > limit {
		errs = append(errs, fmt.Errorf("schema: Prefix %q is longer than %d bytes: PostgreSQL would truncate table names at %d bytes",
			c.Prefix, limit, maxIdentifier))
	}
	switch {
	case c.Inbox != Plain && c.Inbox != ByDay:
		errs = append(errs, fmt.Errorf("schema: Inbox is %q: use %q or %q", c.Inbox, Plain, ByDay))
	case c.Inbox == ByDay && c.Dialect == SQLite:
		errs = append(errs, fmt.Errorf("schema: Inbox %q: SQLite has no partitions, use %q", c.Inbox, Plain))
	}
	switch {
	case c.Sent != "" && c.Sent != Plain && c.Sent != ByDay:
		errs = append(errs, fmt.Errorf("schema: Sent is %q: use %q or %q", c.Sent, Plain, ByDay))
	case c.Sent == ByDay && c.Dialect == SQLite:
		errs = append(errs, fmt.Errorf("schema: Sent %q: SQLite has no partitions, use %q", c.Sent, Plain))
	}
	return errors.Join(errs...)
}

// Table returns the quoted name of one of the module's tables, for example
// `"once_outbox"` for "outbox". If Schema is set, the result includes the schema.
func (c Config) Table(name string) string {
	c = c.WithDefaults()
	quoted := `"` + c.Prefix + name + `"`
	if c.Schema != "" {
		return `"` + c.Schema + `".` + quoted
	}
	return quoted
}

// index does not include the schema: an index is always in that of its table, and CREATE INDEX
// refuses one.
func (c Config) index(name string) string {
	return `"` + c.WithDefaults().Prefix + name + `"`
}

var placeholder = regexp.MustCompile(`\{(index )?([a-z_]+)\}`)

func (c Config) expand(text string) string {
	return placeholder.ReplaceAllStringFunc(text, func(match string) string {
		name := strings.Trim(match, "{}")
		if index, ok := strings.CutPrefix(name, "index "); ok {
			return c.index(index)
		}
		return c.Table(name)
	})
}

var longestName = sync.OnceValue(func() int {
	longest := 0
	for _, dialect := range []Dialect{PostgreSQL, SQLite} {
		for _, m := range migrations(dialect) {
			for _, match := range placeholder.FindAllStringSubmatch(m.text, -1) {
				longest = max(longest, len(match[2]))
			}
		}
	}
	return longest
})
