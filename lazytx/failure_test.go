package lazytx_test

import (
	"database/sql"
	"database/sql/driver"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/lib/pq"

	"github.com/watermill-once/once/internal/dialect"
	"github.com/watermill-once/once/internal/testkit"
	"github.com/watermill-once/once/lazytx"
	"github.com/watermill-once/once/schema"
)

// A commit of a failed transaction returns the same error as without this package.
func TestCommitOfFailedTransactionReturnsError(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	tx, release := b.lazy()
	b.exec(tx, `INSERT INTO effects VALUES (1)`)
	if _, err := tx.ExecContext(t.Context(), `INSERT INTO effects VALUES ('no number')`); err == nil {
		t.Fatal("the statement succeeded")
	}
	b.stateIs(failed)
	if err := b.ours.Commit(tx); err == nil || errors.Is(err, dialect.ErrCommitUnknown) {
		t.Fatalf("the commit returned %v", err)
	}
	release()
	b.stateIs(idle)
	b.expect("0")
}

// After an error of the first statement, the next BEGIN is sent immediately, because
// the server may have become a replica.
func TestBeginIsSentAtOnceAfterError(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	tx, release := b.lazy()
	if _, err := tx.ExecContext(t.Context(), `INSERT INTO effects VALUES ('no number')`); err == nil {
		t.Fatal("the statement succeeded")
	}
	b.stateIs(failed)
	release()
	_, release = b.lazy()
	b.stateIs(inTransaction)
	release()
	b.effect(1)
	b.lazy()
	b.stateIs(idle)
}

// After a connection has been idle, BEGIN is sent immediately. If the connection is
// dead, the pool takes another connection.
func TestIdleConnectionIsCheckedByBegin(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.kill()
	b.setAlive(time.Now().Add(-2 * lazytx.MaxIdle))
	b.effect(1)
	b.expect("0", "1")
}

// If a connection has died while it was idle, only the next transaction on this
// connection fails.
func TestDeadConnectionFailsOneTransactionOnly(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.kill()
	b.setAlive(time.Now())
	tx, release := b.lazy()
	if _, err := tx.ExecContext(t.Context(), `INSERT INTO effects VALUES (1)`); !errors.Is(err, driver.ErrBadConn) {
		t.Fatalf("the statement returned %v", err)
	}
	release()
	b.effect(2)
	b.expect("0", "2")
}

// On a replica, BEGIN fails with the same error as without this package.
func TestReplicaErrorIsTheSame(t *testing.T) {
	t.Parallel()
	server := testkit.PrivatePostgres(t)
	c, err := pq.NewConnector(server.DSN("postgres"))
	if err != nil {
		t.Fatal(err)
	}
	ours, err := dialect.New(schema.Config{})
	if err != nil {
		t.Fatal(err)
	}
	before := sql.OpenDB(c)
	defer before.Close()
	var data string
	if err := before.QueryRowContext(t.Context(), `SHOW data_directory`).Scan(&data); err != nil {
		t.Fatal(err)
	}
	server.Stop()
	if err := os.WriteFile(filepath.Join(data, "standby.signal"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := server.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]driver.Connector{"without": c, "with": lazytx.Connector(c)} {
		db := sql.OpenDB(c)
		defer db.Close()
		for range 3 {
			err := ours.Write(t.Context(), db, func(*sql.Tx) error { return nil })
			if !dialect.Unavailable(err) || dialect.Refused(err) {
				t.Errorf("%s: %v", name, err)
			}
			if n := db.Stats().OpenConnections; n > 0 {
				t.Errorf("%s: the pool keeps the connection", name)
			}
		}
	}
}

func (b *bench) kill() {
	b.Helper()
	b.exec(b.others, `
		SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity
		WHERE datname = current_database() AND backend_type = 'client backend' AND pid <> pg_backend_pid()`)
}
