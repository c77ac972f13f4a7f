package schema

import (
	"cmp"
	"errors"
	"fmt"
	"regexp"
	"strings"
)

// Dialect names a kind of database.
type Dialect string

// The databases for which there are migrations.
const (
	PostgreSQL Dialect = "postgres"
	SQLite     Dialect = "sqlite"
)

// InboxLayout is how the inbox lies in the database, and so how it forgets.
type InboxLayout string

const (
	// Plain is one table. What is too old is deleted row by row, whatever the
	// ids look like.
	Plain InboxLayout = "plain"

	// ByDay is a table with a partition for each day of the ids, for ids that
	// begin with their time: UUIDs of version 7 in lower case, as outbox.NewID
	// makes them. A day that is too old goes at once. All other ids share one
	// more partition, which forgets as Plain does. For PostgreSQL only.
	ByDay InboxLayout = "by_day"
)

const (
	defaultPrefix = "once_"

	// PostgreSQL cuts longer identifiers silently (NAMEDATALEN - 1), so that
	// two long prefixes would share their tables.
	maxIdentifier = 63
)

var identifier = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

// Config says which tables are meant. Every package that touches the database
// takes the same Config; the zero value is PostgreSQL, the connection's search
// path and the prefix "once_".
type Config struct {
	// Dialect is the kind of database. Defaults to PostgreSQL.
	Dialect Dialect

	// Schema is the PostgreSQL schema that holds the tables; it must be empty
	// for SQLite. Letters, digits and underscores, at most 63 bytes. Defaults
	// to the first schema of the connection's search path.
	Schema string

	// Prefix stands before the name of every table and index. Letters, digits
	// and underscores; with the longest name behind it at most 63 bytes.
	// Defaults to "once_".
	Prefix string

	// Inbox is how the inbox lies in the database. [Up] turns a plain one into
	// days, with what is in it, and not the other way. Everything that takes a
	// Config should be told the same. Defaults to Plain.
	Inbox InboxLayout
}

// WithDefaults returns c with its empty fields filled.
func (c Config) WithDefaults() Config {
	c.Dialect = cmp.Or(c.Dialect, PostgreSQL)
	c.Prefix = cmp.Or(c.Prefix, defaultPrefix)
	c.Inbox = cmp.Or(c.Inbox, Plain)
	return c
}

// Validate reports every field that cannot be used, all at once.
func (c Config) Validate() error {
	c = c.WithDefaults()
	var errs []error
	if c.Dialect != PostgreSQL && c.Dialect != SQLite {
		errs = append(errs, fmt.Errorf("schema: Dialect %q is none of %q, %q", c.Dialect, PostgreSQL, SQLite))
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
	if most := maxIdentifier - longestName(); len(c.Prefix) > most {
		errs = append(errs, fmt.Errorf("schema: Prefix %q is longer than %d bytes: table names would be cut at %d",
			c.Prefix, most, maxIdentifier))
	}
	switch {
	case c.Inbox != Plain && c.Inbox != ByDay:
		errs = append(errs, fmt.Errorf("schema: Inbox %q is none of %q, %q", c.Inbox, Plain, ByDay))
	case c.Inbox == ByDay && c.Dialect == SQLite:
		errs = append(errs, fmt.Errorf("schema: Inbox %q: SQLite has no partitions, use %q", c.Inbox, Plain))
	}
	return errors.Join(errs...)
}

// Table returns the quoted and, where a schema is set, qualified name of one
// of the module's tables, for example `"once_outbox"` for "outbox".
func (c Config) Table(name string) string {
	c = c.WithDefaults()
	quoted := `"` + c.Prefix + name + `"`
	if c.Schema != "" {
		return `"` + c.Schema + `".` + quoted
	}
	return quoted
}

// index returns the quoted name of an index. An index always lives in the
// schema of its table, and PostgreSQL refuses to have that said.
func (c Config) index(name string) string {
	return `"` + c.WithDefaults().Prefix + name + `"`
}

var placeholder = regexp.MustCompile(`\{(index )?([a-z_]+)\}`)

// expand fills the {table} and {index name} placeholders of a migration.
func (c Config) expand(text string) string {
	return placeholder.ReplaceAllStringFunc(text, func(match string) string {
		name := strings.Trim(match, "{}")
		if index, ok := strings.CutPrefix(name, "index "); ok {
			return c.index(index)
		}
		return c.Table(name)
	})
}

// longestName is the length of the longest name that the migrations use.
func longestName() int {
	longest := 0
	for _, dialect := range []Dialect{PostgreSQL, SQLite} {
		for _, m := range migrations(dialect) {
			for _, match := range placeholder.FindAllStringSubmatch(m.text, -1) {
				longest = max(longest, len(match[2]))
			}
		}
	}
	return longest
}
