package dedup_test

import (
	"context"
	"database/sql"
	"errors"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/dedup"
	"github.com/watermill-once/once/internal/disposition"
	"github.com/watermill-once/once/internal/testkit"
)

// Trap 34. If a message is delivered twice at the same moment, the second delivery must
// wait for the first, and run only if the first is rolled back.
func TestDuplicateWaitsForTheFirstDelivery(t *testing.T) {
	t.Parallel()
	for name, outcome := range map[string]struct {
		first error
		runs  int
	}{
		"the first commits":    {nil, 1},
		"the first rolls back": {errHandler, 2},
	} {
		t.Run(name, func(t *testing.T) {
			testkit.EachDatabase(t, func(t *testing.T, db testkit.Database) {
				b := newBench(t, db, func(c *dedup.Config) { c.LockTimeout = time.Minute })
				entered, finish := make(chan struct{}), make(chan struct{})
				runs := 0
				first, second := make(chan error, 1), make(chan error, 1)
				go func() {
					_, err := b.inbox.Middleware(func(msg *message.Message) ([]*message.Message, error) {
						runs++
						close(entered)
						<-finish
						return nil, errors.Join(write(msg.Context(), msg), outcome.first)
					})(message.NewMessage("m1", nil))
					first <- err
				}()
				<-entered
				go func() {
					_, err := b.inbox.Middleware(func(msg *message.Message) ([]*message.Message, error) {
						runs++
						return nil, write(msg.Context(), msg)
					})(message.NewMessage("m1", nil))
					second <- err
				}()
				waitUntilBlocked(t, db, second)
				close(finish)
				if err := <-first; !errors.Is(err, outcome.first) {
					t.Fatalf("first: %v", err)
				}
				if err := <-second; err != nil {
					t.Fatalf("second: %v", err)
				}
				if runs != outcome.runs {
					t.Fatalf("the handler ran %d times, want %d", runs, outcome.runs)
				}
				b.expect(1, 1, 0)
			})
		})
	}
}

// waitUntilBlocked returns when the duplicate waits for a lock. SQLite does not show
// locks, so there it waits for a moment and checks that the duplicate has not returned.
func waitUntilBlocked(t *testing.T, db testkit.Database, second <-chan error) {
	t.Helper()
	if db.Dialect == "postgres" {
		testkit.Eventually(t, 30*time.Second, "the second copy waits for the first", func() bool {
			var waiting bool
			err := db.QueryRowContext(t.Context(), `
				SELECT EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock')`).Scan(&waiting)
			return err == nil && waiting
		})
	}
	select {
	case err := <-second:
		t.Fatalf("the duplicate did not wait: %v", err)
	default:
	}
}

// Trap 78. A duplicate must not wait forever, and no attempt may be counted for its
// wait.
func TestDuplicateOfAFrozenHandlerStopsWaiting(t *testing.T) {
	t.Parallel()
	db := testkit.Postgres(t)
	b := newBench(t, db, func(c *dedup.Config) { c.LockTimeout = 50 * time.Millisecond })
	tx, err := db.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = tx.Rollback() })
	_, err = tx.ExecContext(t.Context(), `INSERT INTO once_inbox (message_id, consumer, digest) VALUES ('m1', $1, '')`, consumer)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	_, err = b.inbox.Middleware(apply)(message.NewMessageWithContext(ctx, "m1", nil))
	kindOf(t, err, disposition.Undecided)
	if !containsText(err, "another delivery of it is still being handled") {
		t.Errorf("the error does not name the other delivery: %v", err)
	}
	if ctx.Err() != nil {
		t.Error("the duplicate waited until its context ended")
	}
}

// Trap 78. If a handler hangs, PostgreSQL must end its transaction, so that duplicates
// can run.
func TestFrozenHandlerLosesItsTransaction(t *testing.T) {
	t.Parallel()
	db := testkit.Postgres(t)
	b := newBench(t, db, func(c *dedup.Config) { c.IdleTimeout = 50 * time.Millisecond })
	_, err := b.inbox.Middleware(func(msg *message.Message) ([]*message.Message, error) {
		testkit.Eventually(t, 30*time.Second, "the frozen transaction is ended", func() bool {
			var open int
			err := db.QueryRowContext(t.Context(), `
				SELECT COUNT(*) FROM pg_stat_activity WHERE datname = current_database() AND state = 'idle in transaction'`).Scan(&open)
			return err == nil && open == 0
		})
		return nil, write(msg.Context(), msg)
	})(message.NewMessage("m1", nil))
	kindOf(t, err, disposition.Undecided)
	b.expect(0, 0, 0)
}

// The connection is lost in the handler, before the commit, or during the commit. The
// outcome is unknown, so no attempt may be counted, and the next delivery must handle
// the message.
func TestLostConnectionCountsAsNoAttempt(t *testing.T) {
	t.Parallel()
	db := testkit.Postgres(t)
	b := newBench(t, db, nil)
	for name, handler := range map[string]message.HandlerFunc{
		"in the handler": func(msg *message.Message) ([]*message.Message, error) {
			tx, _ := dedup.TxFromContext(msg.Context())
			terminate(t, db.DB, tx)
			return nil, write(msg.Context(), msg)
		},
		"before the commit": func(msg *message.Message) ([]*message.Message, error) {
			tx, _ := dedup.TxFromContext(msg.Context())
			err := write(msg.Context(), msg)
			terminate(t, db.DB, tx)
			return nil, err
		},
	} {
		_, err := b.inbox.Middleware(handler)(message.NewMessage("m1", nil))
		if err == nil {
			t.Fatalf("%s: no error", name)
		}
		kindOf(t, err, disposition.Undecided)
	}
	b.expect(0, 0, 0)
	if _, err := b.inbox.Middleware(apply)(message.NewMessage("m1", nil)); err != nil {
		t.Fatal(err)
	}
	b.expect(1, 1, 0)
}

// If a statement of a handler exceeds the handler's own timeout, the handler has
// failed, although the driver closes the connection too. Otherwise the message would be
// retried forever without a counted attempt. If the database is unreachable, the same
// error must not count as an attempt.
func TestHandlersOwnTimeoutIsItsFailure(t *testing.T) {
	t.Parallel()
	server := testkit.PrivatePostgres(t)
	db, err := sql.Open("postgres", server.DSN("postgres"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	db.SetMaxOpenConns(1)
	b := newBench(t, testkit.Database{DB: db, Dialect: "postgres"}, nil)
	impatient := func(msg *message.Message) ([]*message.Message, error) {
		ctx, cancel := context.WithTimeout(msg.Context(), 50*time.Millisecond)
		defer cancel()
		tx, _ := dedup.TxFromContext(msg.Context())
		_, err := tx.ExecContext(ctx, `SELECT pg_sleep(60)`)
		return nil, err
	}
	_, err = b.inbox.Middleware(impatient)(message.NewMessage("m1", nil))
	kindOf(t, err, disposition.Failed)
	late := message.NewMessage("m1", nil)
	deadline, end := context.WithTimeout(t.Context(), 50*time.Millisecond) // as a middleware for timeouts sets it
	defer end()
	late.SetContext(deadline)
	_, err = b.inbox.Middleware(impatient)(late)
	kindOf(t, err, disposition.Failed)
	_, err = b.inbox.Middleware(func(msg *message.Message) ([]*message.Message, error) {
		_, err := impatient(msg)
		server.Stop()
		return nil, err
	})(message.NewMessage("m1", nil))
	kindOf(t, err, disposition.Undecided)

	if err := server.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	msg := message.NewMessage("m1", nil)
	msg.SetContext(ctx)
	_, err = b.inbox.Middleware(func(msg *message.Message) ([]*message.Message, error) {
		time.AfterFunc(50*time.Millisecond, cancel) // as in a shutdown
		tx, _ := dedup.TxFromContext(msg.Context())
		_, err := tx.ExecContext(msg.Context(), `SELECT pg_sleep(60)`)
		return nil, err
	})(msg)
	kindOf(t, err, disposition.Undecided)
	b.expect(0, 0, 0)
}

// A handler that has done its work is not interrupted by the deadline of its message, so
// its work is committed.
func TestWorkThatEndsAfterTheDeadlineIsCommitted(t *testing.T) {
	t.Parallel()
	b := newBench(t, testkit.Postgres(t), nil)
	ctx, cancel := context.WithCancel(t.Context())
	msg := message.NewMessage("m1", nil)
	msg.SetContext(ctx)
	_, err := b.inbox.Middleware(func(msg *message.Message) ([]*message.Message, error) {
		produced, err := apply(msg)
		cancel()
		return produced, err
	})(msg)
	if err != nil {
		t.Error(err)
	}
	b.expect(1, 1, 0)
}

// If a handler ignores the error of a statement, the handler has still failed, because
// PostgreSQL executes no more statements in this transaction.
func TestHiddenErrorOfAStatementIsAFailure(t *testing.T) {
	t.Parallel()
	b := newBench(t, testkit.Postgres(t), nil)
	_, err := b.inbox.Middleware(func(msg *message.Message) ([]*message.Message, error) {
		tx, _ := dedup.TxFromContext(msg.Context())
		_, _ = tx.ExecContext(msg.Context(), `SELECT 1/0`)
		return nil, nil
	})(message.NewMessage("m1", nil))
	kindOf(t, err, disposition.Failed)
	b.expect(0, 0, 0)
}

// If the database refuses the commit, the handler has failed.
func TestRefusedCommitIsAFailure(t *testing.T) {
	t.Parallel()
	db := testkit.Postgres(t)
	b := newBench(t, db, nil)
	b.exec(`CREATE TABLE unique_later (n integer UNIQUE DEFERRABLE INITIALLY DEFERRED)`)
	_, err := b.inbox.Middleware(func(msg *message.Message) ([]*message.Message, error) {
		tx, _ := dedup.TxFromContext(msg.Context())
		_, err := tx.ExecContext(context.Background(), `INSERT INTO unique_later VALUES (1), (1)`)
		return nil, err
	})(message.NewMessage("m1", nil))
	kindOf(t, err, disposition.Failed)
	b.expect(0, 0, 0)
}
