package testkit

import (
	"database/sql"
	"testing"
)

// Database is a new, empty database. It is dropped when its test ends.
type Database struct {
	*sql.DB

	// DSN is the data source name for the driver with the name in Dialect.
	DSN string

	// Dialect is "postgres" or "sqlite".
	Dialect string
}

// EachDatabase runs a test with each kind of database, as the subtests postgres and
// sqlite.
func EachDatabase(t *testing.T, test func(t *testing.T, db Database)) {
	t.Helper()
	t.Run("postgres", func(t *testing.T) { test(t, Postgres(t)) })
	t.Run("sqlite", func(t *testing.T) { test(t, SQLite(t)) })
}
