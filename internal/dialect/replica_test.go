package dialect_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"testing"

	"github.com/watermill-once/once/internal/dialect"
	"github.com/watermill-once/once/internal/testkit"
)

// Trap 27. A connection to a replica is closed. Otherwise the pool would use the
// connection again, and every write would fail. With most drivers, BEGIN succeeds on a
// replica, and only the first write fails.
func TestTrap27ConnectionToReplicaIsClosed(t *testing.T) {
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
			t.Errorf("after %s: connection kept is %v", state, kept)
		}
	}
}

// Trap 27. lib/pq's BEGIN with READ WRITE fails on a replica, and the connection is
// closed then, too.
func TestTrap27ConnectionToReplicaIsClosedAfterBegin(t *testing.T) {
	server := &replica{}
	db := sql.OpenDB(server)
	defer db.Close()
	for want := range 3 {
		_, _, err := dialect.Begin(t.Context(), db, nil)
		if dialect.State(err) != "25006" {
			t.Fatalf("got %v, want the error of a write on a replica", err)
		}
		if server.connections != want+1 {
			t.Fatalf("%d connections were made, want %d", server.connections, want+1)
		}
	}
}

// replica simulates a server that refuses BEGIN with READ WRITE.
type replica struct{ connections int }

func (r *replica) Connect(context.Context) (driver.Conn, error) {
	r.connections++
	return replicaConn{}, nil
}

func (*replica) Driver() driver.Driver { return nil }

type replicaConn struct{}

func (replicaConn) Prepare(string) (driver.Stmt, error) { return nil, errors.ErrUnsupported }
func (replicaConn) Close() error                        { return nil }
func (replicaConn) Begin() (driver.Tx, error)           { return nil, notOnAReplicaError{} }

type notOnAReplicaError struct{}

func (notOnAReplicaError) Error() string {
	return "cannot set transaction read-write mode during recovery"
}
func (notOnAReplicaError) SQLState() string { return "0A000" }
