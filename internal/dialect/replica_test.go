package dialect_test

import (
	"database/sql"
	"testing"

	"github.com/watermill-once/once/internal/dialect"
	"github.com/watermill-once/once/internal/testkit"
)

// Drivers whose BEGIN says nothing of writing find out at the first statement
// that writes. The connection would be used again and fail for ever.
func TestTrap27AConnectionToAReplicaIsThrownAway(t *testing.T) {
	db := testkit.Postgres(t)
	db.SetMaxOpenConns(1)
	exec(t, db, `CREATE TABLE work (n integer)`)
	connection := func() (n int) {
		t.Helper()
		if err := db.QueryRowContext(t.Context(), `SELECT pg_backend_pid()`).Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	for state, c := range map[string]struct {
		query string
		kept  bool
	}{
		"25006": {`SET TRANSACTION READ ONLY; INSERT INTO work VALUES (1)`, false},
		"42P01": {`INSERT INTO nowhere VALUES (1)`, true},
	} {
		before := connection()
		err := newDialect(t, db).Write(t.Context(), db.DB, func(tx *sql.Tx) error {
			_, err := tx.ExecContext(t.Context(), c.query)
			return err
		})
		if got := dialect.State(dialect.LeaveReplica(t.Context(), db.DB, err)); got != state {
			t.Fatalf("got %v, want %s", err, state)
		}
		if kept := connection() == before; kept != c.kept {
			t.Errorf("after %s: kept is %v", state, kept)
		}
	}
}
