package trace

import (
	"database/sql"
	"testing"

	"github.com/watermill-once/once/internal/test/kit"
)

// A message that moves from one table to another during a call appears in exactly one
// of the tables.
func TestTablesAreReadAsOfOneMoment(t *testing.T) {
	kit.EachDatabase(t, func(t *testing.T, db kit.Database) {
		config := kit.Tables(t, db)
		j, err := New(db.DB, config)
		kit.OK(t, err)
		count := func(tx *sql.Tx) (n int) {
			kit.OK(t, tx.QueryRowContext(t.Context(), `SELECT COUNT(*) FROM once_blocked_keys`).Scan(&n))
			return n
		}
		// After a function of the user has run, each transaction begins with a query that
		// restores the settings of the session.
		kit.OK(t, j.db.InTx(t.Context(), db.DB, func(*sql.Tx) error { return nil }))
		kit.OK(t, j.snapshot(t.Context(), func(tx *sql.Tx) error {
			if got := count(tx); got != 0 {
				t.Fatalf("count is %d, want 0", got)
			}
			kit.Exec(t, db, `INSERT INTO once_blocked_keys (ordering_key, position, successors_after, reason)
				VALUES ('k', 1, 1, 'dead')`)
			if got := count(tx); got != 0 {
				t.Fatalf("count is %d, want 0", got)
			}
			return nil
		}))
	})
}
