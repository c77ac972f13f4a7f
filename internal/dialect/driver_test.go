package dialect_test

import (
	"database/sql"
	"testing"

	"github.com/watermill-once/once/internal/dialect"
	"github.com/watermill-once/once/internal/testkit"
)

func TestPreparesRecognisesPgx(t *testing.T) {
	t.Parallel()
	database := testkit.Postgres(t)
	for name, want := range map[string]bool{"pgx": true, "postgres": false} {
		db, err := sql.Open(name, database.DSN)
		if err != nil {
			t.Fatal(err)
		}
		defer db.Close()
		tx, err := db.BeginTx(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		if got := dialect.Prepares(tx); got != want {
			t.Errorf("%s: %t, want %t", name, got, want)
		}
		if err := tx.Rollback(); err != nil {
			t.Fatal(err)
		}
		_ = dialect.Prepares(tx) // no panic after the end
	}
}
