package dedup_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/dedup"
	"github.com/watermill-once/once/internal/chain"
	"github.com/watermill-once/once/internal/dialect"
	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/outbox"
	"github.com/watermill-once/once/schema"
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
			kit.EachDatabase(t, func(t *testing.T, db kit.Database) {
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
func waitUntilBlocked(t *testing.T, db kit.Database, second <-chan error) {
	t.Helper()
	if db.Dialect == "postgres" {
		kit.Eventually(t, 30*time.Second, "the second copy waits for the first", func() bool {
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
	db := kit.Postgres(t)
	b := newBench(t, db, func(c *dedup.Config) { c.LockTimeout = 50 * time.Millisecond })
	tx, err := db.BeginTx(t.Context(), nil)
	kit.OK(t, err)
	t.Cleanup(func() { _ = tx.Rollback() })
	kit.Exec(t, tx, `INSERT INTO once_inbox (message_id, consumer, digest) VALUES ('m1', $1, '')`, consumer)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	_, err = b.inbox.Middleware(apply)(message.NewMessageWithContext(ctx, "m1", nil))
	kindOf(t, err, chain.Undecided)
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
	db := kit.Postgres(t)
	b := newBench(t, db, func(c *dedup.Config) { c.IdleTimeout = 50 * time.Millisecond })
	_, err := b.inbox.Middleware(func(msg *message.Message) ([]*message.Message, error) {
		kit.Eventually(t, 30*time.Second, "the frozen transaction is ended", func() bool {
			var open int
			err := db.QueryRowContext(t.Context(), `
				SELECT COUNT(*) FROM pg_stat_activity WHERE datname = current_database() AND state = 'idle in transaction'`).Scan(&open)
			return err == nil && open == 0
		})
		return nil, write(msg.Context(), msg)
	})(message.NewMessage("m1", nil))
	kindOf(t, err, chain.Undecided)
	b.expect(0, 0, 0)
}

// The connection is lost in the handler, before the commit, or during the commit. The
// outcome is unknown, so no attempt may be counted, and the next delivery must handle
// the message.
func TestLostConnectionCountsAsNoAttempt(t *testing.T) {
	t.Parallel()
	db := kit.Postgres(t)
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
		kindOf(t, err, chain.Undecided)
	}
	b.expect(0, 0, 0)
	kit.OK(t, kit.Err(b.inbox.Middleware(apply)(message.NewMessage("m1", nil))))
	b.expect(1, 1, 0)
}

// If a statement of a handler exceeds the handler's own timeout, the handler has
// failed, although the driver closes the connection too. Otherwise the message would be
// retried forever without a counted attempt. If the database is unreachable, the same
// error must not count as an attempt.
func TestHandlersOwnTimeoutIsItsFailure(t *testing.T) {
	kit.Long(t)
	t.Parallel()
	server := kit.PrivatePostgres(t)
	db, err := sql.Open("postgres", server.DSN("postgres"))
	kit.OK(t, err)
	t.Cleanup(func() { _ = db.Close() })
	db.SetMaxOpenConns(1)
	b := newBench(t, kit.Database{DB: db, Dialect: "postgres"}, nil)
	impatient := func(msg *message.Message) ([]*message.Message, error) {
		ctx, cancel := context.WithTimeout(msg.Context(), 50*time.Millisecond)
		defer cancel()
		tx, _ := dedup.TxFromContext(msg.Context())
		_, err := tx.ExecContext(ctx, `SELECT pg_sleep(60)`)
		return nil, err
	}
	_, err = b.inbox.Middleware(impatient)(message.NewMessage("m1", nil))
	kindOf(t, err, chain.Failed)
	late := message.NewMessage("m1", nil)
	deadline, end := context.WithTimeout(t.Context(), 50*time.Millisecond) // as a middleware for timeouts sets it
	defer end()
	late.SetContext(deadline)
	_, err = b.inbox.Middleware(impatient)(late)
	kindOf(t, err, chain.Failed)
	_, err = b.inbox.Middleware(func(msg *message.Message) ([]*message.Message, error) {
		_, err := impatient(msg)
		server.Stop()
		return nil, err
	})(message.NewMessage("m1", nil))
	kindOf(t, err, chain.Undecided)

	kit.OK(t, server.Restart(t.Context()))
	ctx, cancel := context.WithCancel(t.Context())
	msg := message.NewMessage("m1", nil)
	msg.SetContext(ctx)
	_, err = b.inbox.Middleware(func(msg *message.Message) ([]*message.Message, error) {
		time.AfterFunc(50*time.Millisecond, cancel) // as in a shutdown
		tx, _ := dedup.TxFromContext(msg.Context())
		_, err := tx.ExecContext(msg.Context(), `SELECT pg_sleep(60)`)
		return nil, err
	})(msg)
	kindOf(t, err, chain.Undecided)
	b.expect(0, 0, 0)
}

// A handler that has done its work is not interrupted by the deadline of its message, so
// its work is committed.
func TestWorkThatEndsAfterTheDeadlineIsCommitted(t *testing.T) {
	t.Parallel()
	b := newBench(t, kit.Postgres(t), nil)
	ctx, cancel := context.WithCancel(t.Context())
	msg := message.NewMessage("m1", nil)
	msg.SetContext(ctx)
	_, err := b.inbox.Middleware(func(msg *message.Message) ([]*message.Message, error) {
		produced, err := apply(msg)
		cancel()
		return produced, err
	})(msg)
	kit.Check(t, err)
	b.expect(1, 1, 0)
}

// If a handler ignores the error of a statement, the handler has still failed, because
// PostgreSQL executes no more statements in this transaction.
func TestHiddenErrorOfAStatementIsAFailure(t *testing.T) {
	t.Parallel()
	b := newBench(t, kit.Postgres(t), nil)
	_, err := b.inbox.Middleware(func(msg *message.Message) ([]*message.Message, error) {
		tx, _ := dedup.TxFromContext(msg.Context())
		_, _ = tx.ExecContext(msg.Context(), `SELECT 1/0`)
		return nil, nil
	})(message.NewMessage("m1", nil))
	kindOf(t, err, chain.Failed)
	b.expect(0, 0, 0)
}

// If the database refuses the commit, the handler has failed.
func TestRefusedCommitIsAFailure(t *testing.T) {
	t.Parallel()
	db := kit.Postgres(t)
	b := newBench(t, db, nil)
	b.Exec(`CREATE TABLE unique_later (n integer UNIQUE DEFERRABLE INITIALLY DEFERRED)`)
	_, err := b.inbox.Middleware(func(msg *message.Message) ([]*message.Message, error) {
		tx, _ := dedup.TxFromContext(msg.Context())
		_, err := tx.ExecContext(context.Background(), `INSERT INTO unique_later VALUES (1), (1)`)
		return nil, err
	})(message.NewMessage("m1", nil))
	kindOf(t, err, chain.Failed)
	b.expect(0, 0, 0)
}

// statements returns a handler that executes statements, and then publishes a message and
// returns another one.
func (b *bench) statements(all ...string) message.HandlerFunc {
	return func(msg *message.Message) ([]*message.Message, error) {
		ctx := context.WithoutCancel(msg.Context())
		tx, _ := dedup.TxFromContext(ctx)
		if err := write(ctx, msg); err != nil {
			return nil, err
		}
		for _, s := range all {
			if _, err := tx.ExecContext(ctx, s); err != nil {
				return nil, err
			}
		}
		if err := b.box.Publisher(tx).Publish("t", message.NewMessage(outbox.NewID(), nil)); err != nil {
			return nil, err
		}
		produced := message.NewMessage(outbox.NewID(), nil)
		outbox.SetTopic(produced, "t")
		return []*message.Message{produced}, nil
	}
}

// Whatever a handler does to the search path, the statements of this library use
// the tables to which the connections of the pool lead. This includes the handlers of
// other messages in the same batch, and later transactions of the connection.
func TestHandlerThatChangesTheSearchPathUsesTheSameTables(t *testing.T) {
	kit.Long(t)
	t.Parallel()
	for _, statement := range []string{`SET LOCAL search_path = other`, `SET search_path = other`} {
		for _, batch := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, batch %t", statement, batch), func(t *testing.T) {
				db := kit.Postgres(t)
				db.SetMaxOpenConns(1)
				b := newBench(t, db, nil)
				b.Exec(`CREATE SCHEMA other`)
				kit.OK(t, schema.Up(t.Context(), db.DB, schema.Config{Schema: "other"}))
				// The effects are written before the statement, and the first statement of
				// the handler undoes the change of an earlier one.
				h := func(msg *message.Message) ([]*message.Message, error) {
					tx, _ := dedup.TxFromContext(msg.Context())
					if _, err := tx.ExecContext(msg.Context(), `SET LOCAL search_path = public`); err != nil {
						return nil, err
					}
					return b.statements(statement)(msg)
				}
				handle := b.inbox.Middleware(h)
				if batch {
					handle = b.inbox.BatchMiddleware(h)
				}
				for _, id := range []string{"m1", "m2", "m1"} {
					kit.OK(t, kit.Err(handle(message.NewMessage(id, nil))))
				}
				b.Exec(`SET search_path = public`)
				b.expect(2, 2, 4)
				if n := b.Count(`other.once_outbox`) + b.Count(`other.once_inbox`); n != 0 {
					t.Errorf("%d rows are in the other schema", n)
				}
			})
		}
	}
}

// Trap 27. A connection to a server that has become a replica is closed, so that a later call can
// reach the new primary. pgx, unlike lib/pq, can begin a transaction on a replica.
func TestTrap27_ConsumerLeavesAReplica(t *testing.T) {
	t.Parallel()
	const write = `INSERT INTO effects (message_id) VALUES ('m1')`
	for name, c := range map[string]struct {
		session, handler string
		batch            bool
	}{
		"the claim fails":              {`SET SESSION CHARACTERISTICS AS TRANSACTION READ ONLY`, write, false},
		"the claim of a batch fails":   {`SET SESSION CHARACTERISTICS AS TRANSACTION READ ONLY`, write, true},
		"the handler fails":            {`SELECT 1`, `SET TRANSACTION READ ONLY; ` + write, false},
		"the handler fails in a batch": {`SELECT 1`, `SET TRANSACTION READ ONLY; ` + write, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := kit.Postgres(t)
			var err error
			db.DB, err = kit.Drivers["pgx"](db.DSN)
			kit.OK(t, err)
			t.Cleanup(func() { kit.Check(t, db.Close()) })
			db.SetMaxOpenConns(1)
			b := newBench(t, db, nil)
			middleware := b.inbox.Middleware
			if c.batch {
				middleware = b.inbox.BatchMiddleware
			}
			before := kit.One[int](t, db.DB, `SELECT pg_backend_pid()`)
			b.Exec(c.session)
			_, err = middleware(b.statements(c.handler))(message.NewMessage("m1", nil))
			if dialect.State(err) != "25006" {
				t.Fatalf("got %v, want the error of a write on a replica", err)
			}
			if kit.One[int](t, db.DB, `SELECT pg_backend_pid()`) == before {
				t.Error("the connection was kept")
			}
			kit.OK(t, kit.Err(middleware(b.statements(write))(message.NewMessage("m1", nil))))
		})
	}
}

// If a handler has changed the role, and this role may not write to the outbox, the error
// says so.
func TestErrorAfterAChangedRoleNamesSETROLE(t *testing.T) {
	t.Parallel()
	b := newBench(t, kit.Postgres(t), nil)
	role := fmt.Sprintf("once_test_%x", outbox.NewID()[24:])
	b.Exec(`CREATE ROLE ` + role)
	t.Cleanup(func() { _, _ = b.ExecContext(context.WithoutCancel(t.Context()), `DROP ROLE `+role) })
	_, err := b.inbox.Middleware(b.statements(`SET LOCAL ROLE ` + role))(message.NewMessage("m1", nil))
	if err == nil || !strings.Contains(err.Error(), "if a function of yours runs SET ROLE") {
		t.Errorf("got %v", err)
	}
	b.expect(0, 0, 0)
}

// RESET ALL also resets the setting that marks the transaction. It does not end the
// transaction.
func TestResetAllIsNotTakenForTheEndOfTheTransaction(t *testing.T) {
	t.Parallel()
	for _, batch := range []bool{false, true} {
		b := newBench(t, kit.Postgres(t), nil)
		h := b.inbox.Middleware(b.statements(`RESET ALL`))
		if batch {
			h = b.inbox.BatchMiddleware(b.statements(`RESET ALL`))
		}
		if _, err := h(message.NewMessage("m1", nil)); err != nil {
			t.Errorf("batch %t: %v", batch, err)
		}
		b.expect(1, 1, 2)
	}
}

// Trap 90. If a handler has ended its transaction, it can publish no event, even if it
// ignores the error.
func TestHandlerThatEndsItsTransactionPublishesNothing(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, b *bench) {
		for _, ignore := range []bool{false, true} {
			_, err := b.inbox.Middleware(func(msg *message.Message) ([]*message.Message, error) {
				tx, _ := dedup.TxFromContext(msg.Context())
				if _, err := tx.ExecContext(msg.Context(), `ROLLBACK`); err != nil {
					return nil, err
				}
				err := b.box.Publisher(tx).Publish("t", message.NewMessage("e1", nil))
				if !errors.Is(err, sql.ErrTxDone) {
					t.Errorf("Publish: got %v, want sql.ErrTxDone", err)
				}
				if ignore {
					return nil, nil
				}
				return nil, err
			})(message.NewMessage("m1", nil))
			kindOf(t, err, chain.Permanent)
		}
		b.expect(0, 0, 0)
	})
}
