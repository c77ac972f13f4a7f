// Package dialect is where PostgreSQL and SQLite differ: a few words of SQL,
// how lists are passed, how a transaction begins, and what an error means.
// Everything else is written once for both.
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
}

// New returns the Dialect for config, or the error of its validation.
func New(config schema.Config) (Dialect, error) {
	if err := config.Validate(); err != nil {
		return Dialect{}, err
	}
	return Dialect{config: config.WithDefaults()}, nil
}

// SQLite says whether the database is SQLite, which has one writer at a time
// and no snapshots to wait for.
func (d Dialect) SQLite() bool { return d.config.Dialect == schema.SQLite }

// Config returns the configuration with its defaults filled in.
func (d Dialect) Config() schema.Config { return d.config }

var (
	macro     = regexp.MustCompile(`\{([a-z_]+)((?: [^{}]+)?)\}`)
	parameter = regexp.MustCompile(`\$(\d+)`)
)

// SQL fills the placeholders of a query, once, when a package starts:
//
//	{outbox}           the quoted name of the table
//	{now}              the database's clock
//	{after $1}         that clock plus $1 milliseconds
//	{millis due_at}    a time as whole milliseconds since 1970, within the years 1 to 9999
//	{from_millis $1}   the time of such milliseconds; NULL stays NULL
//	{list $1 bigint}   the elements of a list passed by [List] or [Strings], for use behind IN
//	{among $1 bigint}  the same behind what is one of them, to be found by an index whatever
//	                   PostgreSQL knows of the table: a list could be joined with all of it
//	{for_update}       take row locks, waiting for those who hold them
//	{skip_locked}      take row locks, passing over rows that others hold
//
// Parameters are written $1, $2 in either dialect.
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

// The times that Go, JSON and 64 bits can do with. A row in which somebody has
// written another one, or infinity, must not make its table unreadable.
const (
	firstMilli = -62_135_596_800_000 // the beginning of year 1
	lastMilli  = 253_402_214_400_000 // the end of year 9999, but for its last day
)

const sqliteNow = "CAST(unixepoch('subsec') * 1000 AS INTEGER)"

func (d Dialect) expand(name string, args []string) string {
	switch name {
	case "now":
		if d.SQLite() {
			return sqliteNow
		}
		return "now()"
	case "after":
		if d.SQLite() {
			return fmt.Sprintf("(%s + %s)", sqliteNow, args[0])
		}
		return fmt.Sprintf("(now() + %s::bigint * interval '1 millisecond')", args[0])
	case "millis":
		if d.SQLite() {
			return fmt.Sprintf("MAX(MIN(%s, %d), %d)", args[0], lastMilli, firstMilli)
		}
		return fmt.Sprintf("CASE WHEN %[1]s IS NOT NULL THEN (extract(epoch FROM GREATEST(LEAST(%[1]s, "+
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
		return fmt.Sprintf("(SELECT unnest(%s::text::%s[]))", args[0], args[1])
	case "among":
		if d.SQLite() {
			return fmt.Sprintf("IN (SELECT value FROM json_each(%s))", args[0])
		}
		return fmt.Sprintf("= ANY (%s::text::%s[])", args[0], args[1])
	case "for_update":
		if d.SQLite() { // it has one writer at a time
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
