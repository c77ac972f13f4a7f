package undecided

import (
	"context"
	"database/sql"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once"
	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/operate"
	"github.com/watermill-once/once/operate/quarantine"
	"github.com/watermill-once/once/poison"
	"github.com/watermill-once/once/retry"
)

// Statements with which a handler ends its transaction.
var endings = map[string]string{
	"ROLLBACK":           `ROLLBACK`,
	"ROLLBACK AND CHAIN": `ROLLBACK AND CHAIN`,
	"ROLLBACK; BEGIN":    `ROLLBACK; BEGIN`,
	"COMMIT; BEGIN":      `COMMIT; BEGIN`,
	"COMMIT AND CHAIN":   `COMMIT AND CHAIN`,
}

// Trap 90. A handler that ends its transaction gets an error, and its message is kept.
// No message is acked without an effect, and there is no effect without a row in the
// inbox.
func TestHandlerThatEndsItsTransactionIsRefused(t *testing.T) {
	for mode := range modes {
		t.Run(mode, func(t *testing.T) {
			eachDriver(t, func(t *testing.T, db kit.Database) {
				w := newWorld(t, db, mode, func(ctx context.Context, tx *sql.Tx, msg *message.Message) error {
					return statement(endings[msg.UUID])(ctx, tx, msg)
				}, func(c *once.ConsumerConfig) { c.Retry.Policy = policy })
				for name := range endings {
					if db.Dialect == "sqlite" && strings.Contains(name, "CHAIN") {
						continue // SQLite does not have this statement
					}
					w.deliver(1, name).Wait()
					var page operate.Page[quarantine.Entry]
					kit.Eventually(t, time.Minute, name+" is in quarantine", func() bool {
						var err error
						page, err = w.consumer.Quarantine().List(t.Context(), operate.Filter{MessageID: name})
						return err == nil && len(page.Rows) == 1
					})
					const says = "the handler has ended its transaction, which it must neither commit nor roll back"
					if e := page.Rows[0]; !strings.Contains(e.Error, says) || e.Reason != poison.ReasonPermanent {
						t.Errorf("%s: %s: %s", name, e.Reason, e.Error)
					}
					if n := w.callsOf(name); n > 2 { // one in a batch, and one by itself
						t.Errorf("%s: %d calls", name, n)
					}
				}
				// After ROLLBACK without BEGIN, each statement is a separate
				// transaction, which cannot be rolled back. In the other cases no
				// effect may remain.
				if n := w.count(`effects WHERE message_id <> 'ROLLBACK'`); n > 0 {
					t.Errorf("%d effects are left", n)
				}
			})
		})
	}
}

// Trap 83. The statements of a handler use the lock_timeout of their connection, and not the
// LockTimeout of the inbox.
func TestHandlersStatementsUseTheLockTimeoutOfTheConnection(t *testing.T) {
	for mode := range modes {
		t.Run(mode, func(t *testing.T) {
			for name, open := range kit.Drivers {
				t.Run(name, func(t *testing.T) {
					if name != "libpq" && mode != "single" {
						kit.Long(t)
					}
					database := kit.Postgres(t)
					db, err := open(database.DSN + "&lock_timeout=7s")
					kit.OK(t, err)
					t.Cleanup(func() { _ = db.Close() })
					db.SetMaxOpenConns(1)
					var got []string
					change := func(c *once.ConsumerConfig) {
						c.Dedup.LockTimeout = 20 * time.Millisecond
						c.Dedup.Idempotent = []string{"another"}
						if mode == "durable" {
							c.Dedup.Key = func(msg *message.Message) string { return "key of " + msg.UUID }
						}
						c.Retry.Policy = retry.Policy{Immediate: -1, Delayed: -1}
					}
					database.DB = db
					w := newWorld(t, database, mode, func(ctx context.Context, tx *sql.Tx, _ *message.Message) error {
						var lock, idle string
						err := tx.QueryRowContext(ctx, `SELECT current_setting('lock_timeout'),
							current_setting('idle_in_transaction_session_timeout')`).Scan(&lock, &idle)
						if err != nil { // on a busy machine, the cancellation of a claim can reach this statement
							t.Logf("the handler's statement: %v", err)
							return err
						}
						got = append(got, lock, idle)
						return nil
					}, change)
					ids := []string{"m1", "m2", "m3"}
					w.deliver(3, ids...).Wait()
					kit.Eventually(t, time.Minute, "the messages take effect", func() bool { return w.count(`effects`) == len(ids) })
					if len(got) != 2*len(ids) {
						t.Fatalf("the handler saw %q", got)
					}
					for i := 0; i < len(got); i += 2 {
						if got[i] != "7s" || got[i+1] != "5min" {
							t.Errorf("lock_timeout and idle_in_transaction_session_timeout are %s and %s, want 7s and 5min", got[i], got[i+1])
						}
					}
					var after string
					if err := db.QueryRowContext(t.Context(), `SHOW lock_timeout`).Scan(&after); err != nil || after != "7s" {
						t.Errorf("after the transaction, lock_timeout is %s, %v", after, err)
					}
				})
			}
		})
	}
}

// While a message waits for the transaction of its duplicate, no attempt is counted.
// After the LockTimeout of the inbox the waiting statement is canceled, and the message
// is tried again.
func TestWaitForADuplicateCountsAsNoAttempt(t *testing.T) {
	for name, open := range kit.Drivers {
		t.Run(name, func(t *testing.T) {
			if name != "libpq" {
				kit.Long(t)
			}
			t.Parallel()
			database := kit.Postgres(t)
			db, err := open(database.DSN)
			kit.OK(t, err)
			t.Cleanup(func() { _ = db.Close() })
			database.DB = db
			w := newWorld(t, database, "single", func(context.Context, *sql.Tx, *message.Message) error { return nil },
				func(c *once.ConsumerConfig) {
					c.Dedup.LockTimeout = 300 * time.Millisecond // long enough that a busy machine can send the claim
					c.Retry.Policy = retry.Policy{Immediate: -1, Delayed: -1}
					c.Dedup.IdleTimeout = 7 * 24 * time.Hour
				})
			tx := kit.Begin(t, db)
			defer func() { _ = tx.Rollback() }()
			if _, err := tx.ExecContext(t.Context(),
				`INSERT INTO once_inbox (message_id, consumer, digest) VALUES ('m1', '`+consumer+`', '')`); err != nil {
				t.Fatal(err)
			}
			acked := w.deliver(1, "m1")
			kit.Eventually(t, time.Minute, "claims have given up waiting", func() bool {
				return w.count(`pg_stat_database WHERE datname = current_database() AND xact_rollback > 6`) == 1
			})
			// Claims that have given up must not continue to wait in the server.
			kit.Eventually(t, time.Minute, "at most one claim waits", func() bool {
				return w.count(`pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'`) <= 1
			})
			kit.OK(t, tx.Rollback())
			acked.Wait()
			if n, parked := w.count(`effects`), w.count(`once_parked`); n != 1 || parked != 0 || w.callsOf("m1") != 1 {
				t.Errorf("%d effects, %d are parked or in quarantine, %d calls", n, parked, w.callsOf("m1"))
			}
		})
	}
}
