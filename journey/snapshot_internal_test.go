package journey

import (
	"database/sql"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/watermill-once/once/internal/testkit"
	"github.com/watermill-once/once/schema"
)

// A message that moves from one table to another during a call is in one of them.
func TestTablesAreReadAsOfOneMoment(t *testing.T) {
	testkit.EachDatabase(t, func(t *testing.T, db testkit.Database) {
		config := schema.Config{Dialect: schema.Dialect(db.Dialect)}
		require.NoError(t, schema.Up(t.Context(), db.DB, config))
		j, err := New(db.DB, Config{Schema: config})
		require.NoError(t, err)
		count := func(tx *sql.Tx) (n int) {
			require.NoError(t, tx.QueryRowContext(t.Context(), `SELECT COUNT(*) FROM once_blocked_keys`).Scan(&n))
			return n
		}
		require.NoError(t, j.snapshot(t.Context(), func(tx *sql.Tx) error {
			require.Zero(t, count(tx))
			_, err := db.ExecContext(t.Context(), `INSERT INTO once_blocked_keys (ordering_key, position, successors_after, reason)
				VALUES ('k', 1, 1, 'dead')`)
			require.NoError(t, err)
			require.Zero(t, count(tx))
			return nil
		}))
	})
}
