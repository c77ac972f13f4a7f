// Package dialect hides the differences between PostgreSQL and SQLite: some words of
// SQL, the form of list parameters, the start of transactions, and the meaning of
// errors. All other code is the same for both.
package dialect

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/watermill-once/once/schema"
)

// Dialect writes queries for one database and one set of tables.
type Dialect struct {
	config schema.Config
	plans  *plans
	sample *Sample
}

// New returns the Dialect for config. It fails if config is invalid.
func New(config schema.Config) (Dialect, error) {
	if err := config.Validate(); err != nil {
		return Dialect{}, err
	}
	return Dialect{config: config.WithDefaults(), plans: &plans{slow: slowWork}, sample: &Sample{}}, nil
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

// Go and JSON support only times between these limits of {millis}. A row with another time, or
// infinity, must not make its table unreadable.
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
		// EXTRACT would compute with type numeric, in five times as long.
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

// Columns returns a table named c for the FROM clause of a query, with the lists in $1, $2 and so
// on as its columns, such as "id bigint". See [Dialect.List] and [Dialect.Strings].
func (d Dialect) Columns(columns ...string) string {
	var values, names []string
	for i, column := range columns {
		name, kind, _ := strings.Cut(column, " ")
		if d.SQLite() {
			values = append(values, fmt.Sprintf("json_extract($%d, '$[' || e.key || ']') AS %s", i+1, name))
		} else {
			values = append(values, fmt.Sprintf("$%d::text::%s[]", i+1, kind))
		}
		names = append(names, name)
	}
	if d.SQLite() {
		return `(SELECT ` + strings.Join(values, ", ") + ` FROM json_each($1) AS e) AS c`
	}
	return `unnest(` + strings.Join(values, ", ") + `) AS c(` + strings.Join(names, ", ") + `)`
}

// List returns numbers as a single parameter, for the {list} placeholder or, in PostgreSQL, a cast
// to bigint[]. It needs no array type of a driver.
func (d Dialect) List(values []int64) string {
	opening, closing := byte('{'), byte('}')
	if d.SQLite() {
		opening, closing = '[', ']'
	}
	b := make([]byte, 0, 2+8*len(values))
	b = append(b, opening)
	for i, v := range values {
		if i > 0 {
			b = append(b, ',')
		}
		b = strconv.AppendInt(b, v, 10)
	}
	return string(append(b, closing))
}

var arrayEscape = strings.NewReplacer(`\`, `\\`, `"`, `\"`)

// Strings is like [Dialect.List], for valid UTF-8 without NUL.
func (d Dialect) Strings(values []string) string {
	if d.SQLite() {
		if values == nil {
			values = []string{}
		}
		encoded, _ := json.Marshal(values) // encoding strings cannot fail
		return string(encoded)
	}
	var b strings.Builder
	b.WriteByte('{')
	for i, v := range values {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteByte('"')
		_, _ = arrayEscape.WriteString(&b, v)
		b.WriteByte('"')
	}
	b.WriteByte('}')
	return b.String()
}

// numbered are the tables with a sequence for their primary key.
var numbered = []string{"outbox", "outbox_dead", "outbox_sent", "parked", "audit", "replays", "reconciliations"}

// ExplainNumber adds the remedy, and schema.ErrSequence, to err if a sequence of PostgreSQL has
// returned a number that another row has.
func (d Dialect) ExplainNumber(err error) error {
	if State(err) != "23505" || errors.Is(err, schema.ErrSequence) { // unique_violation
		return err
	}
	for _, name := range numbered {
		table := d.config.Prefix + name
		if strings.Contains(err.Error(), table+"_pkey") {
			return fmt.Errorf("%w, for example after logical replication or a restore: table %s already has the number of a new row: "+
				"run `once doctor` or schema.Check, and then the setval statements that they print: %w", schema.ErrSequence, table, err)
		}
	}
	return err
}

// EachRow executes query in tx, and calls row with the Scan method for each row of the result, up
// to the first error.
func EachRow(
	ctx context.Context, tx *sql.Tx, row func(scan func(dest ...any) error) error, query string, args ...any,
) error {
	rows, err := tx.QueryContext(ctx, query, args...)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		if err := row(rows.Scan); err != nil {
			return err
		}
	}
	return rows.Err()
}

// Affected returns the number of rows that a statement changed.
func Affected(result sql.Result, err error) (int64, error) {
	if err != nil {
		return 0, err
	}
	return result.RowsAffected()
}

// LogDurability logs an error if a crash of the database may lose commits, see [schema.Durability].
// It ignores other errors, because the next query returns them, too.
func (d Dialect) LogDurability(ctx context.Context, db *sql.DB, logger watermill.LoggerAdapter) {
	if err := schema.Durability(ctx, db, d.config); errors.Is(err, schema.ErrNotDurable) {
		logger.Error("The database may lose what was acknowledged", err, nil)
	}
}
