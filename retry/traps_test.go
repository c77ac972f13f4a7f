package retry_test

import (
	"context"
	"database/sql"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/dedup"
	"github.com/watermill-once/once/internal/parkedrows"
	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/poison"
	"github.com/watermill-once/once/retry"
)

// runOnce is like run, but with dedup around h. h gets the transaction that dedup has
// begun.
func (b *bench) runOnce(h func(ctx context.Context, tx *sql.Tx, msg *message.Message) error) {
	b.Helper()
	quarantine, err := poison.New(b.DB, poison.Config{Schema: b.Config})
	kit.OK(b, err)
	inbox, err := dedup.New(b.DB, dedup.Config{Schema: b.Config})
	if err == nil {
		_, err = b.ExecContext(b.Context(), `CREATE TABLE effects (message_id TEXT PRIMARY KEY)`)
	}
	kit.OK(b, err)
	b.runWith(func(msg *message.Message) error {
		tx, _ := dedup.TxFromContext(msg.Context())
		return h(msg.Context(), tx, msg)
	}, quarantine.Middleware, b.retries.Middleware, inbox.Middleware)
}

func apply(ctx context.Context, tx *sql.Tx, msg *message.Message) error {
	_, err := tx.ExecContext(ctx, `INSERT INTO effects (message_id) VALUES ('`+msg.UUID+`')`)
	return err
}

// The inbox must not skip a retry or a replay of a failed message as a duplicate.
func TestTrap38RetriesAndReplaysAreNoDuplicates(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, b *bench) {
		var mu sync.Mutex
		calls := 0
		b.runOnce(func(ctx context.Context, tx *sql.Tx, msg *message.Message) error {
			mu.Lock()
			defer mu.Unlock()
			if calls++; calls <= 4 { // this fails in all attempts of the policy
				return errHandler
			}
			return apply(ctx, tx, msg)
		})
		b.transport.deliver(t, message.NewMessage("m1", nil))
		b.Eventually("it is in quarantine", func() bool { return len(b.entries(parkedrows.Quarantined)) == 1 })
		if n := b.Count("effects"); calls != 4 || n != 0 {
			t.Fatalf("%d calls, %d effects", calls, n)
		}
		kit.OK(t, b.quarantine().Replay(t.Context(), someone, b.entries("")[0].ID))
		b.Eventually("the replay ran", func() bool { return b.Count("effects") == 1 })
	})
}

// After a failed statement, the transaction in PostgreSQL is unusable. The next try must
// get a new transaction, and the writes of the first try must be rolled back.
func TestTrap55EachTryHasItsOwnTransaction(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, b *bench) {
		calls := 0
		b.runOnce(func(ctx context.Context, tx *sql.Tx, msg *message.Message) error {
			calls++
			if err := apply(ctx, tx, msg); err != nil { // this fails if the write of the first try still exists
				return err
			}
			if calls == 1 {
				_, err := tx.ExecContext(ctx, `SELECT * FROM nowhere`)
				return err
			}
			return nil
		})
		if !b.transport.deliver(t, message.NewMessage("m1", nil)) || calls != 2 || b.Count("effects") != 1 || len(b.entries("")) != 0 {
			t.Fatalf("%d calls, %d effects, rows %+v", calls, b.Count("effects"), b.entries(""))
		}
	})
}

// The writes of a failed attempt must be rolled back, whether the message is parked,
// given up on, or returned to the transport.
func TestTrap59WritesOfFailedAttemptAreNotCommitted(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, b *bench) {
		b.runOnce(func(ctx context.Context, tx *sql.Tx, msg *message.Message) error {
			err := apply(ctx, tx, msg)
			switch msg.UUID {
			case "permanent":
				return errors.Join(err, retry.Permanent(errHandler))
			case "later":
				return errors.Join(err, retry.After(errHandler, time.Hour))
			case "panics":
				panic("boom")
			}
			return errors.Join(err, errHandler)
		})
		for _, id := range []string{"permanent", "later", "panics", "fails"} {
			b.transport.deliver(t, message.NewMessage(id, nil))
		}
		b.Eventually("three are in quarantine", func() bool { return len(b.entries(parkedrows.Quarantined)) == 3 })
		if effects, done := b.Count("effects"), b.Count("once_inbox"); effects != 0 || done != 0 {
			t.Fatalf("%d effects, %d rows in the inbox", effects, done)
		}
	})
}

// While the table is missing, a failed message can be neither parked nor given up on. It
// must stay unacked, so that the broker's delivery limit is not used up. No attempt may
// be counted.
func TestTrap73MessageWaitsUnackedWhileTableIsMissing(t *testing.T) {
	t.Parallel()
	kit.EachDatabase(t, func(t *testing.T, db kit.Database) {
		b := newBench(t, db, nil)
		calls := 0
		b.run(func(*message.Message) error {
			if calls++; calls <= 2 {
				return errHandler
			}
			return nil
		})
		exec := func(query string) {
			kit.Exec(t, db, query)
		}
		exec(`ALTER TABLE once_parked RENAME TO elsewhere`)
		msg := message.NewMessage("m1", nil)
		b.transport.messages <- msg
		b.polls(40) // long enough for a nack
		select {
		case <-msg.Acked():
			t.Fatal("acked without being stored")
		case <-msg.Nacked():
			t.Fatal("nacked")
		default:
		}
		exec(`ALTER TABLE elsewhere RENAME TO once_parked`)
		<-msg.Acked()
		b.Eventually("it was handled", func() bool { return len(b.entries("")) == 0 })
		if calls != 3 {
			t.Fatalf("%d calls, want 3", calls)
		}
	})
}

// After UnackedWait, a message must be nacked, because the broker closes the channel
// after its consumer timeout (RabbitMQ: 30 minutes). UnackedWait is shorter than that.
func TestTrap46MessageIsNackedAfterUnackedWait(t *testing.T) {
	t.Parallel()
	kit.EachDatabase(t, func(t *testing.T, db kit.Database) {
		b := newBench(t, db, func(c *retry.Config) { c.UnackedWait = 50 * time.Millisecond })
		b.run(func(*message.Message) error { return errHandler })
		kit.Exec(t, db, `ALTER TABLE once_parked RENAME TO elsewhere`)
		if b.transport.deliver(t, message.NewMessage("m1", nil)) {
			t.Fatal("acked without being stored")
		}
	})
}

func TestTrap56ClassesAndLoggerDoNotChangeDelays(t *testing.T) {
	t.Parallel()
	kit.EachDatabase(t, func(t *testing.T, db kit.Database) {
		var asked, logged atomic.Int32
		b := newBench(t, db, func(c *retry.Config) {
			c.Policy = retry.Policy{Immediate: 1, Delayed: 4, Base: time.Hour, Factor: 2, Max: 6 * time.Hour, Jitter: -1}
			no := func(error) bool {
				asked.Add(1)
				return false
			}
			c.Classes = []retry.Class{{Match: no}, {Match: no}}
			c.Logger = counting{&logged}
		})
		b.run(func(*message.Message) error { return errHandler })
		b.transport.deliver(t, message.NewMessage("m1", nil))
		for round, want := range []time.Duration{time.Hour, 2 * time.Hour, 4 * time.Hour, 6 * time.Hour} {
			b.Eventually("it is parked", func() bool {
				waiting := b.entries(parkedrows.Waiting)
				return len(waiting) == 1 && waiting[0].Attempts == 2*round+2
			})
			e := b.entries(parkedrows.Waiting)[0]
			if got := e.DueAt.Sub(e.LastFailedAt); got != want {
				t.Errorf("after round %d the message waits for %v, want %v", round, got, want)
			}
			kit.Exec(t, b, `UPDATE once_parked SET due_at = created_at`)
		}
		b.Eventually("it is in quarantine", func() bool { return len(b.entries(parkedrows.Quarantined)) == 1 })
		if asked.Load() == 0 || logged.Load() == 0 {
			t.Errorf("the classes were called %d times, the logger %d times", asked.Load(), logged.Load())
		}
	})
}

// counting is a logger that counts its lines.
type counting struct{ lines *atomic.Int32 }

func (l counting) Error(string, error, watermill.LogFields)         { l.lines.Add(1) }
func (l counting) Info(string, watermill.LogFields)                 { l.lines.Add(1) }
func (l counting) Debug(string, watermill.LogFields)                { l.lines.Add(1) }
func (l counting) Trace(string, watermill.LogFields)                { l.lines.Add(1) }
func (l counting) With(watermill.LogFields) watermill.LoggerAdapter { return l }

// The inbox must use the consumer name of Subscriber, not the name of the handler in
// the router.
func TestTrap51RenamedHandlerKeepsItsInbox(t *testing.T) {
	t.Parallel()
	kit.EachDatabase(t, func(t *testing.T, db kit.Database) {
		b := newBench(t, db, nil)
		inbox, err := dedup.New(db.DB, dedup.Config{Schema: b.Config})
		kit.OK(t, err)
		var calls atomic.Int32
		for _, name := range []string{"capture", "capture_payment"} {
			router, err := message.NewRouter(message.RouterConfig{CloseTimeout: time.Minute}, watermill.NopLogger{})
			kit.OK(t, err)
			router.AddMiddleware(b.retries.Middleware, inbox.Middleware)
			transport := newTransport()
			router.AddConsumerHandler(name, topic, b.retries.Subscriber(consumer, transport), func(*message.Message) error {
				calls.Add(1)
				return nil
			})
			ended := kit.Go(func() error { return router.Run(context.WithoutCancel(t.Context())) })
			<-router.Running()
			if !transport.deliver(t, message.NewMessage("m1", nil)) {
				t.Errorf("%s: not acked", name)
			}
			kit.OK(t, errors.Join(router.Close(), <-ended))
		}
		if n := calls.Load(); n != 1 || b.Count(`once_inbox WHERE consumer = 'payments'`) != 1 {
			t.Errorf("%d calls, %d rows in the inbox", n, b.Count(`once_inbox`))
		}
	})
}
