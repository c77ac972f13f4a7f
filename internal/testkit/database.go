package testkit

import (
	"database/sql"
	"testing"
)

// Database is an empty database of one test. After the test it is emptied for another
// test, or dropped.
type Database struct {
	*sql.DB

	// DSN is the data source name, for the driver that is named in Dialect.
	DSN string

	// Dialect is "postgres" or "sqlite".
	Dialect string
}

// EachDatabase runs a test with each kind of database. The subtests are named postgres
// and sqlite.
func EachDatabase(t *testing.T, test func(t *testing.T, db Database)) {
	t.Helper()
	eachDatabase(t, Postgres, test)
}

// EachEmptyDatabase is like [EachDatabase], but the databases have no tables, even if
// the package uses [MainWithTables].
func EachEmptyDatabase(t *testing.T, test func(t *testing.T, db Database)) {
	t.Helper()
	eachDatabase(t, EmptyPostgres, test)
}

func eachDatabase(t *testing.T, postgres func(testing.TB) Database, test func(t *testing.T, db Database)) {
	t.Helper()
	t.Run("postgres", func(t *testing.T) { test(t, postgres(t)) })
	t.Run("sqlite", func(t *testing.T) { test(t, SQLite(t)) })
}
