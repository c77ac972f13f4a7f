package lazytx

import (
	"database/sql/driver"
	"errors"
	"testing"
	"time"

	"github.com/watermill-once/once/internal/dialect"
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

func (b *bench) kill() {
	b.Helper()
	b.exec(b.others, `
		SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity
		WHERE datname = current_database() AND backend_type = 'client backend' AND pid <> pg_backend_pid()`)
}
