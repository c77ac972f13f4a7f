package lazytx

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
	"github.com/watermill-once/once/schema"
)

// A commit of what has failed says so, as without this package.
func TestFailedIsNotCommitted(t *testing.T) {
	b := newBench(t)
	tx, release := b.lazy()
	b.exec(tx, `INSERT INTO effects VALUES (1)`)
	if _, err := tx.ExecContext(t.Context(), `INSERT INTO effects VALUES ('no number')`); err == nil {
		t.Fatal("it was stored")
	}
	b.stateIs(failed)
	if err := b.ours.Commit(tx); err == nil || errors.Is(err, dialect.ErrCommitUnknown) {
		t.Fatalf("the commit returned %v", err)
	}
	release()
	b.stateIs(idle)
	b.expect("0")
}

// After an error of the first statement the connection is asked before it is
// trusted again: it may lead to a replica.
func TestFailureIsNotTrusted(t *testing.T) {
	b := newBench(t)
	tx, release := b.lazy()
	if _, err := tx.ExecContext(t.Context(), `INSERT INTO effects VALUES ('no number')`); err == nil {
		t.Fatal("it was stored")
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

// A connection that rested is asked, and another one taken if it has died.
func TestRestedConnection(t *testing.T) {
	b := newBench(t)
	b.kill()
	b.setAlive(time.Now().Add(-2 * rested))
	b.effect(1)
	b.expect("0", "1")
}

// One that has died since it was used costs the work that has it, which is
// told, and no other.
func TestDeadConnection(t *testing.T) {
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

// A replica refuses BEGIN, which is told as it is without this package.
func TestReplica(t *testing.T) {
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
	for name, c := range map[string]driver.Connector{"without": c, "with": Connector(c)} {
		db := sql.OpenDB(c)
		defer db.Close()
		for range 3 {
			err := ours.Write(t.Context(), db, func(*sql.Tx) error { return nil })
			if !dialect.Unavailable(err) || dialect.Refused(err) {
				t.Errorf("%s: %v", name, err)
			}
			if n := db.Stats().OpenConnections; n > 0 {
				t.Errorf("%s: the connection is kept", name)
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
