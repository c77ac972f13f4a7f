// Package dialect hides the differences between PostgreSQL and SQLite: some words of
// SQL, the form of list parameters, the start of transactions, and the meaning of
// errors. All other code is the same for both.
//
// To read the code, start with dialect.go, list.go and statement.go (queries). Then
// read tx.go and errors.go (transactions). The other files can be read in any order.
package dialect

import (
	"fmt"
	"regexp"
	"strings"

	"github.com/watermill-once/once/schema"
)

// Dialect writes queries for one database and one set of tables.
type Dialect struct {
	config schema.Config
	plans  *plans
}

// New returns the Dialect for config. It fails if config is invalid.
func New(config schema.Config) (Dialect, error) {
	if err := config.Validate(); err != nil {
		return Dialect{}, err
	}
	return Dialect{config: config.WithDefaults(), plans: &plans{slow: slowWork}}, nil
}

// SQLite reports whether the database is SQLite. SQLite has one writer at a time.
func (d Dialect) SQLite() bool { return d.config.Dialect == schema.SQLite }

// Config returns the configuration with its defaults.
func (d Dialect) Config() schema.Config { return d.config }

var (
	macro     = regexp.MustCompile(`\{([a-z_]+)((?: [^{}]+)?)\}`)
	parameter = regexp.MustCompile(`\$(\d+)`)
)

// SQL replaces the placeholders of a query. Call it once per query, not per execution:
//
//	{outbox}           the quoted name of the table
//	{now}              the time of the database's clock
//	{clock}            {now} as whole milliseconds since 1970
//	{after $1}         {now} plus $1 milliseconds
//	{millis due_at}    a time as whole milliseconds since 1970, within the years 1 to 9999
//	{from_millis $1}   the time that is $1 milliseconds after 1970 began; NULL stays NULL
//	{list $1 bigint}   the elements of a list from [List] or [Strings], for use after IN
//	{among $1 bigint}  a condition after a column: the column is an element of the list. It
//	                   uses an index even without table statistics; with IN PostgreSQL might
//	                   join the list with the whole table
//	{for_update}       lock the rows, and wait for other locks
//	{skip_locked}      lock the rows, and skip rows that are locked already
//
// Parameters are written $1, $2 in both dialects.
func (d Dialect) SQL(query string) string {
	query = macro.ReplaceAllStringFunc(query, func(match string) string {
		groups := macro.FindStringSubmatch(match)
		return d.expand(groups[1], strings.Fields(groups[2]))
	})
	if d.SQLite() {
		query = parameter.ReplaceAllString(query, "?$1")
	}
	return query
}

// Limits of {millis}. Go and JSON support only times between these limits. A row with
// another time, or with infinity, must not make its table unreadable.
const (
	firstMilli = -62_135_596_800_000 // beginning of the year 1
	lastMilli  = 253_402_214_400_000 // beginning of the last day of the year 9999
)

const sqliteNow = "CAST(unixepoch('subsec') * 1000 AS INTEGER)"

func (d Dialect) expand(name string, args []string) string {
	switch name {
	case "now":
		if d.SQLite() {
			return sqliteNow
		}
		return "now()"
	case "clock":
		if d.SQLite() {
			return sqliteNow
		}
		return d.expand("millis", []string{"now()"})
	case "after":
		if d.SQLite() {
			return fmt.Sprintf("(%s + %s)", sqliteNow, args[0])
		}
		return fmt.Sprintf("(now() + %s::bigint * interval '1 millisecond')", args[0])
	case "millis":
		if d.SQLite() {
			return fmt.Sprintf("MAX(MIN(%s, %d), %d)", args[0], lastMilli, firstMilli)
		}
		// EXTRACT would compute with type numeric, which takes five times as long.
		return fmt.Sprintf("CASE WHEN %[1]s IS NOT NULL THEN (date_part('epoch', GREATEST(LEAST(%[1]s, "+
			"'9999-12-31 00:00Z'), '0001-01-01 00:00Z')) * 1000)::bigint END", args[0])
	case "from_millis":
		if d.SQLite() {
			return args[0]
		}
		return fmt.Sprintf("(timestamptz 'epoch' + %s::bigint * interval '1 millisecond')", args[0])
	case "list":
		if d.SQLite() {
			return fmt.Sprintf("(SELECT value FROM json_each(%s))", args[0])
		}
		return fmt.Sprintf("(SELECT unnest(%s::text::%s[]))", args[0], args[1]) //nolint:gosec // "list" and "among" have two arguments
	case "among":
		if d.SQLite() {
			return fmt.Sprintf("IN (SELECT value FROM json_each(%s))", args[0])
		}
		return fmt.Sprintf("= ANY (%s::text::%s[])", args[0], args[1]) //nolint:gosec // "list" and "among" have two arguments
	case "for_update":
		if d.SQLite() { // has one writer at a time
			return ""
		}
		return "FOR UPDATE"
	case "skip_locked":
		if d.SQLite() {
			return ""
		}
		return "FOR UPDATE SKIP LOCKED"
	default:
		return d.config.Table(name)
	}
}
