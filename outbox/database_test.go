package outbox_test

import (
	"database/sql"
	"testing"

	"github.com/watermill-once/once/internal/testkit"
	"github.com/watermill-once/once/schema"
)

func TestMain(m *testing.M) { testkit.MainWithTables(m) }

// eachDatabase runs test with each kind of database. The databases contain the tables of
// this library.
func eachDatabase(t *testing.T, test func(t *testing.T, db *sql.DB, config schema.Config)) {
	t.Helper()
	testkit.EachDatabase(t, func(t *testing.T, db testkit.Database) {
		config := schema.Config{Dialect: schema.Dialect(db.Dialect)}
		if err := schema.Up(t.Context(), db.DB, config); err != nil {
			t.Fatal(err)
		}
		test(t, db.DB, config)
	})
}

// postgres returns a PostgreSQL database that contains the tables of this library.
func postgres(t testing.TB) *sql.DB {
	t.Helper()
	db := testkit.Postgres(t).DB
	if err := schema.Up(t.Context(), db, schema.Config{}); err != nil {
		t.Fatal(err)
	}
	return db
}
