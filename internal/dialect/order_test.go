package dialect_test

import (
	"context"
	"database/sql"
	"testing"

	"github.com/watermill-once/once/internal/dialect"
	"github.com/watermill-once/once/internal/testkit"
	"github.com/watermill-once/once/schema"
)

// PostgreSQL does not compile the queries of Look, and may compile later queries.
func TestQueriesOfLookAreNotCompiled(t *testing.T) {
	t.Parallel()
	db := testkit.Postgres(t)
	db.SetMaxOpenConns(1)
	d, err := dialect.New(schema.Config{})
	if err != nil {
		t.Fatal(err)
	}
	jit := func(read func(ctx context.Context, db *sql.DB, work func(tx *sql.Tx) error) error) (value string) {
		t.Helper()
		err := read(t.Context(), db.DB, func(tx *sql.Tx) error {
			return tx.QueryRowContext(t.Context(), `SHOW jit`).Scan(&value)
		})
		if err != nil {
			t.Fatal(err)
		}
		return value
	}
	usual := jit(d.Read)
	if got := jit(d.Look); got != "off" {
		t.Errorf("jit is %s in Look, want off", got)
	}
	if got := jit(d.Read); got != usual {
		t.Errorf("jit is %s after Look, want %s", got, usual)
	}
}
