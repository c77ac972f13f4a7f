package undecided

import (
	"context"
	"database/sql"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once"
	"github.com/watermill-once/once/internal/testkit"
	"github.com/watermill-once/once/poison"
	"github.com/watermill-once/once/retry"
)

// Statements with which a handler ends its transaction, before its effect and
// after an effect of its own.
var endings = map[string]string{
	"ROLLBACK":           `ROLLBACK`,
	"ROLLBACK AND CHAIN": `ROLLBACK AND CHAIN`,
	"ROLLBACK; BEGIN":    `ROLLBACK; BEGIN`,
	"COMMIT; BEGIN":      `COMMIT; BEGIN`,
	"COMMIT AND CHAIN":   `COMMIT AND CHAIN`,
}

// Trap 90. If a handler ends its transaction, there must be no ack without an
// effect, and no effect without a row in the inbox. The handler gets an error,
// and the message is kept.
func TestHandlerThatEndsItsTransactionIsRefused(t *testing.T) {
	for mode := range modes {
		t.Run(mode, func(t *testing.T) {
			eachDriver(t, func(t *testing.T, db testkit.Database) {
				w := newWorld(t, db, mode, func(ctx context.Context, tx *sql.Tx, msg *message.Message) error {
					return statement(endings[msg.UUID])(ctx, tx, msg)
				}, func(c *once.ConsumerConfig) { c.Retry.Policy = policy })
				for name := range endings {
					if db.Dialect == "sqlite" && strings.Contains(name, "CHAIN") {
						continue // SQLite has no such statement
					}
					w.deliver(1, name).Wait()
					var entries []poison.Entry
					testkit.Eventually(t, time.Minute, name+" is in quarantine", func() bool {
						var err error
						entries, err = w.consumer.Quarantine().List(t.Context(), poison.Filter{MessageID: name})
						return err == nil && len(entries) == 1
					})
					const says = "the handler has ended its transaction, which it must neither commit nor roll back"
					if e := entries[0]; !strings.Contains(e.Error, says) || e.Reason != poison.ReasonPermanent {
						t.Errorf("%s: %s: %s", name, e.Reason, e.Error)
					}
					if n := w.callsOf(name); n > 2 { // in a batch, and then alone
						t.Errorf("%s: %d calls", name, n)
					}
				}
				// After a plain ROLLBACK each statement is a transaction of its
				// own, which cannot be rolled back. Nothing else remains.
				if n := w.count(`effects WHERE message_id <> 'ROLLBACK'`); n > 0 {
					t.Errorf("%d effects are left", n)
				}
			})
		})
	}
}

// Trap 83. The statements of the handler use the lock_timeout of the session,
// not that of the inbox.
func TestHandlersStatementsUseTheLockTimeoutOfTheSession(t *testing.T) {
	for mode := range modes {
		t.Run(mode, func(t *testing.T) {
			for name, open := range drivers {
				t.Run(name, func(t *testing.T) {
					database := testkit.Postgres(t)
					db, err := open(database.DSN)
					if err != nil {
						t.Fatal(err)
					}
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
						got = append(got, lock, idle)
						return err
					}, change)
					w.exec(`SET lock_timeout = '7s'`) // for the only connection
					ids := []string{"m1", "m2", "m3"}
					w.deliver(3, ids...).Wait()
					testkit.Eventually(t, time.Minute, "they take effect", func() bool { return w.count(`effects`) == len(ids) })
					if len(got) != 2*len(ids) {
						t.Fatalf("the handler saw %q", got)
					}
					for i := 0; i < len(got); i += 2 {
						if got[i] != "7s" || got[i+1] != "5min" {
							t.Errorf("its timeouts of locks and idling are %s and %s, not 7s and 5min", got[i], got[i+1])
						}
					}
					var after string
					if err := db.QueryRowContext(t.Context(), `SHOW lock_timeout`).Scan(&after); err != nil || after != "7s" {
						t.Errorf("afterwards it is %s, %v", after, err)
					}
				})
			}
		})
	}
}

// A message that waits for its duplicate is not charged. After
// Config.LockTimeout it is tried again.
func TestWaitForADuplicateCountsAsNoAttempt(t *testing.T) {
	for name, open := range drivers {
		t.Run(name, func(t *testing.T) {
			database := testkit.Postgres(t)
			db, err := open(database.DSN)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = db.Close() })
			database.DB = db
			w := newWorld(t, database, "single", func(context.Context, *sql.Tx, *message.Message) error { return nil },
				func(c *once.ConsumerConfig) {
					c.Dedup.LockTimeout = 10 * time.Millisecond
					c.Retry.Policy = retry.Policy{Immediate: -1, Delayed: -1}
					c.Dedup.IdleTimeout = 7 * 24 * time.Hour
				})
			tx, err := db.BeginTx(t.Context(), nil)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = tx.Rollback() }()
			if _, err := tx.ExecContext(t.Context(),
				`INSERT INTO once_inbox (message_id, consumer, digest) VALUES ('m1', '`+consumer+`', '')`); err != nil {
				t.Fatal(err)
			}
			acked := w.deliver(1, "m1")
			testkit.Eventually(t, time.Minute, "claims have given up waiting", func() bool {
				return w.count(`pg_stat_database WHERE datname = current_database() AND xact_rollback > 6`) == 1
			})
			if err := tx.Rollback(); err != nil {
				t.Fatal(err)
			}
			acked.Wait()
			if n, parked := w.count(`effects`), w.count(`once_parked`); n != 1 || parked != 0 || w.callsOf("m1") != 1 {
				t.Errorf("%d effects, %d are parked or in quarantine, %d calls", n, parked, w.callsOf("m1"))
			}
		})
	}
}
