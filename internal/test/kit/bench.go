package kit

import (
	"context"
	"database/sql"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/watermill-once/once/internal/dialect"
	"github.com/watermill-once/once/schema"
)

// OK ends the test with err if err is not nil.
func OK(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// Check reports err if it is not nil. The test continues. Other goroutines may call it.
func Check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Error(err)
	}
}

// Err returns the error of a call that also returns a value.
func Err[T any](_ T, err error) error { return err }

// Go calls f in a goroutine, and returns a channel that receives its error.
func Go(f func() error) chan error {
	ended := make(chan error, 1)
	go func() { ended <- f() }()
	return ended
}

// Querier is a *sql.DB, *sql.Conn, *sql.Tx or [Database].
type Querier interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

// Exec executes a statement, or several without args. It ends the test if the database returns an
// error. Functions of t.Cleanup may call it, too.
func Exec(t testing.TB, db Querier, query string, args ...any) {
	t.Helper()
	if _, err := db.ExecContext(context.WithoutCancel(t.Context()), query, args...); err != nil {
		t.Fatalf("%v: %s", err, query)
	}
}

// One returns the value of a query for one row with one column.
func One[T any](t testing.TB, db Querier, query string, args ...any) (value T) {
	t.Helper()
	if err := db.QueryRowContext(context.WithoutCancel(t.Context()), query, args...).Scan(&value); err != nil {
		t.Fatalf("%v: %s", err, query)
	}
	return value
}

// WantNumber ends the test unless the query returns the wanted number.
func WantNumber(t testing.TB, db Querier, want int, query string, args ...any) {
	t.Helper()
	if got := One[int](t, db, query, args...); got != want {
		t.Fatalf("%d, want %d: %s", got, want, query)
	}
}

// Begin begins a transaction.
func Begin(t testing.TB, db interface {
	BeginTx(ctx context.Context, options *sql.TxOptions) (*sql.Tx, error)
},
) *sql.Tx {
	t.Helper()
	tx, err := db.BeginTx(t.Context(), nil)
	OK(t, err)
	return tx
}

// Dialect returns the dialect of a database with these tables.
func Dialect(t testing.TB, config schema.Config) dialect.Dialect {
	t.Helper()
	d, err := dialect.New(config)
	OK(t, err)
	return d
}

// ReadFile returns the content of a file.
func ReadFile(t testing.TB, name string) []byte {
	t.Helper()
	content, err := os.ReadFile(name)
	OK(t, err)
	return content
}

// Lines returns one line for each row of a query. " | " separates its columns, which must be text.
func Lines(t testing.TB, db Querier, query string, args ...any) (lines []string) {
	t.Helper()
	rows, err := db.QueryContext(context.WithoutCancel(t.Context()), query, args...)
	OK(t, err)
	defer rows.Close()
	columns, err := rows.Columns()
	OK(t, err)
	fields, into := make([]string, len(columns)), make([]any, len(columns))
	for i := range fields {
		into[i] = &fields[i]
	}
	for rows.Next() {
		OK(t, rows.Scan(into...))
		lines = append(lines, strings.Join(fields, " | "))
	}
	OK(t, rows.Err())
	return lines
}

// Bench is a test with a database that has the tables. Packages embed it in benches of their own,
// with the parts that they test.
type Bench struct {
	*testing.T
	Database

	Config schema.Config
}

// Tables creates the tables in db, and returns the configuration with its dialect.
func Tables(t testing.TB, db Database) schema.Config {
	t.Helper()
	config := schema.Config{Dialect: schema.Dialect(db.Dialect)}
	OK(t, schema.Up(t.Context(), db.DB, config))
	return config
}

// NewBench creates the tables in db. The dialect of config is that of db.
func NewBench(t *testing.T, db Database, config schema.Config) *Bench {
	t.Helper()
	config.Dialect = schema.Dialect(db.Dialect)
	OK(t, schema.Up(t.Context(), db.DB, config))
	return &Bench{t, db, config}
}

// SQLite reports whether the database is SQLite.
func (b *Bench) SQLite() bool { return b.Dialect == "sqlite" }

// Exec is like the function [Exec].
func (b *Bench) Exec(query string, args ...any) {
	b.Helper()
	Exec(b, b.DB, query, args...)
}

// Number returns the number that a query returns.
func (b *Bench) Number(query string, args ...any) int {
	b.Helper()
	return One[int](b, b.DB, query, args...)
}

// Count returns the number of rows of a table. A condition may follow its name, for example
// "once_inbox WHERE consumer = $1".
func (b *Bench) Count(table string, args ...any) int {
	b.Helper()
	return One[int](b, b.DB, `SELECT COUNT(*) FROM `+table, args...)
}

// WantNumber is like the function [WantNumber].
func (b *Bench) WantNumber(want int, query string, args ...any) {
	b.Helper()
	WantNumber(b, b.DB, want, query, args...)
}

// WantCount ends the test unless [Bench.Count] returns the wanted number.
func (b *Bench) WantCount(want int, table string, args ...any) {
	b.Helper()
	WantNumber(b, b.DB, want, `SELECT COUNT(*) FROM `+table, args...)
}

// FromNow returns an SQL expression for the database's time plus d, in the form that the columns of
// the tables have.
func (b *Bench) FromNow(d time.Duration) string {
	if b.SQLite() {
		return fmt.Sprintf(`CAST(unixepoch('subsec') * 1000 AS INTEGER) + %d`, d.Milliseconds())
	}
	return fmt.Sprintf(`now() + interval '1 millisecond' * %d`, d.Milliseconds())
}

// Audits returns the events of the audit log as lines: actor, action, subject, consumer if there is
// one, message id and reason.
func (b *Bench) Audits() []string {
	b.Helper()
	return Lines(b, b.DB, `SELECT actor, action, subject || CASE consumer WHEN '' THEN '' ELSE ' | ' || consumer END, message_id, why
		FROM once_audit ORDER BY id`)
}

// Eventually is like the function [Eventually], for a minute.
func (b *Bench) Eventually(description string, cond func() bool) {
	b.Helper()
	Eventually(b, time.Minute, description, cond)
}
