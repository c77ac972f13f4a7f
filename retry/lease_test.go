package retry_test

import (
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/dedup"
	"github.com/watermill-once/once/internal/chain"
	"github.com/watermill-once/once/internal/meta"
	"github.com/watermill-once/once/internal/parkedrows"
	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/poison"
	"github.com/watermill-once/once/retry"
)

const shortLease = 500 * time.Millisecond

func withShortLease(c *retry.Config) {
	c.Lease, c.Policy.Immediate = shortLease, 5
}

func TestLeaseIsRenewedWhileHandlerRuns(t *testing.T) {
	t.Parallel()
	kit.EachDatabase(t, func(t *testing.T, db kit.Database) {
		b := newBench(t, db, func(c *retry.Config) { c.Lease, c.Concurrency = shortLease, 4 })
		var calls atomic.Int32
		var first time.Time
		b.run(func(*message.Message) error {
			if calls.Add(1) == 1 {
				first = b.entries("")[0].DueAt
				b.Eventually("the lease is renewed three times", func() bool {
					entries := b.entries("")
					return len(entries) == 1 && entries[0].DueAt.Sub(first) > 2*shortLease
				})
			}
			return nil
		})
		kit.OK(t, b.parked.Deliver(t.Context(), topic, []string{consumer}, message.NewMessage("m1", nil)))
		b.Eventually("the row is gone", func() bool { return len(b.entries("")) == 0 })
		if n := calls.Load(); n != 1 {
			t.Fatalf("the handler ran %d times", n)
		}
	})
}

// A process that cannot reach the database cannot renew its leases. Another process may
// then give up on the message, so the first process must not call the handler again.
func TestTrap48HandlerIsNotCalledAfterLeaseEnd(t *testing.T) {
	t.Parallel()
	var logs kit.Logs
	b := newBench(t, kit.Postgres(t), func(c *retry.Config) {
		withShortLease(c)
		c.Logger = &logs
	})
	b.put("m1")
	blocked := kit.Begin(t, b)
	defer func() { _ = blocked.Rollback() }()
	var calls, released atomic.Int32
	b.run(func(msg *message.Message) error {
		if calls.Add(1) > 1 {
			if released.Load() == 0 {
				t.Error("the handler was called after the end of the lease")
			}
			return nil
		}
		// The lock prevents the renewal of the lease.
		kit.Check(t, kit.Err(blocked.ExecContext(t.Context(), `SELECT FROM once_parked FOR UPDATE`)))
		claim := parkedrows.DeliveryOf(msg.Context()).Claim
		b.Eventually("the lease has ended", func() bool { return !claim.Leased() })
		return chain.HandBack(errHandler)
	})
	b.Eventually("the middleware leaves the message to others", func() bool {
		return logs.Has("Lease of the message has ended", "message_uuid=m1")
	})
	released.Store(1)
	kit.OK(t, blocked.Rollback())
	b.Eventually("it is handled when it can be claimed again", func() bool { return len(b.entries("")) == 0 })
	if n := calls.Load(); n != 2 {
		t.Errorf("%d calls, want 2", n)
	}
}

// A slow handler may use the only connection of the pool, or SQLite's only write
// transaction. Then its own lease cannot be renewed. Its failure must still be counted.
// Otherwise the handler would be called again and again without end.
func TestFailureAfterLeaseEndIsCharged(t *testing.T) {
	t.Parallel()
	kit.EachDatabase(t, func(t *testing.T, db kit.Database) {
		db.SetMaxOpenConns(1)
		b := newBench(t, db, withShortLease)
		b.put("m1")
		quarantine, err := poison.New(b.DB, poison.Config{Schema: b.Config})
		kit.OK(t, err)
		inbox, err := dedup.New(b.DB, dedup.Config{Schema: b.Config})
		kit.OK(t, err)
		var calls atomic.Int32
		b.runWith(func(msg *message.Message) error {
			calls.Add(1)
			claim := parkedrows.DeliveryOf(msg.Context()).Claim
			b.Eventually("the lease has ended", func() bool { return !claim.Leased() })
			return errHandler
		}, quarantine.Middleware, b.retries.Middleware, inbox.Middleware)
		b.Eventually("it is in quarantine", func() bool { return len(b.entries(parkedrows.Quarantined)) == 1 })
		if entry := b.entries(parkedrows.Quarantined)[0]; entry.Attempts != int(calls.Load()) || entry.Reason != chain.ReasonExhausted {
			t.Errorf("%d calls, entry %+v", calls.Load(), entry)
		}
	})
}

// The lease may end after the attempt has begun, but before the message is in the
// inbox. Meanwhile another process may give up on the message, because it did not find
// the message in the inbox. So the first process must not apply the message.
func TestTrap48MessageIsNotAppliedAfterLeaseEnd(t *testing.T) {
	for way, middleware := range map[string]func(*dedup.Inbox) message.HandlerMiddleware{
		"alone":      func(i *dedup.Inbox) message.HandlerMiddleware { return i.Middleware },
		"in a batch": func(i *dedup.Inbox) message.HandlerMiddleware { return i.BatchMiddleware },
	} {
		t.Run(way, func(t *testing.T) {
			kit.EachDatabase(t, func(t *testing.T, db kit.Database) { loseBeforeTheInbox(t, db, middleware) })
		})
	}
}

func loseBeforeTheInbox(t *testing.T, db kit.Database, middleware func(*dedup.Inbox) message.HandlerMiddleware) {
	b := newBench(t, db, withShortLease)
	b.put("m1")
	inbox, err := dedup.New(b.DB, dedup.Config{Schema: b.Config})
	kit.OK(t, err)
	var tries, calls atomic.Int32
	wait := func(h message.HandlerFunc) message.HandlerFunc {
		return func(msg *message.Message) ([]*message.Message, error) {
			if tries.Add(1) == 1 {
				b.loseTo(parkedrows.DeliveryOf(msg.Context()).Claim)
			}
			produced, err := h(msg)
			if tries.Load() == 1 && calls.Load() > 0 {
				t.Error("the message was applied while another process had claimed it")
			}
			return produced, err
		}
	}
	b.runWith(func(*message.Message) error {
		calls.Add(1)
		return nil
	}, b.retries.Middleware, wait, middleware(inbox))
	b.Eventually("it is handled under another claim", func() bool { return len(b.entries("")) == 0 })
	if tries.Load() != 2 || calls.Load() != 1 {
		t.Errorf("%d tries, %d calls, want 2 and 1", tries.Load(), calls.Load())
	}
}

// loseTo simulates the end of a lease: another process claims the row, and releases it
// when the first process has noticed the lost claim.
func (b *bench) loseTo(claim *parkedrows.Claim) {
	b.Helper()
	other := b.parked.Dialect().SQL(`UPDATE {parked} SET token = 'other', due_at = {after $2} WHERE id = $1`)
	for _, due := range []time.Duration{time.Hour, 0} {
		kit.Check(b, kit.Err(b.ExecContext(b.Context(), other, claim.ID, due.Milliseconds())))
		b.Eventually("the lease has ended", func() bool { return !claim.Leased() })
	}
}

// If a claim takes longer than the lease, the claim fails, and smaller claims must be
// tried. The same claim would fail again and again. A trigger makes each claimed row
// slow, like a large message on a slow network.
func TestClaimSlowerThanLeaseIsSplit(t *testing.T) {
	kit.Long(t)
	t.Parallel()
	b := newBench(t, kit.Postgres(t), func(c *retry.Config) { c.Lease, c.Concurrency = time.Second, 64 })
	for _, query := range []string{
		`CREATE FUNCTION slowly() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_sleep(0.02); RETURN NEW; END $$`,
		`CREATE TRIGGER slowly BEFORE UPDATE ON once_parked FOR EACH ROW
			WHEN (OLD.token IS NULL AND NEW.token IS NOT NULL) EXECUTE FUNCTION slowly()`,
	} {
		kit.Exec(t, b, query)
	}
	const count = 128
	for n := range count {
		b.put(fmt.Sprint("m", n))
	}
	var calls atomic.Int32
	b.run(func(*message.Message) error {
		calls.Add(1)
		return nil
	})
	b.Eventually("all are handled", func() bool { return b.Count("once_parked") == 0 })
	if n := calls.Load(); n != count {
		t.Errorf("%d calls, want %d", n, count)
	}
}

// rarely makes the consumer look for due messages only at the start and when it is woken.
func rarely(c *retry.Config) { c.PollInterval = time.Hour }

// A message that was stored because of its ordering key is handled immediately, and then
// the next message of its key is also handled immediately.
func TestStoredMessagesDoNotWaitForAPoll(t *testing.T) {
	t.Parallel()
	kit.EachDatabase(t, func(t *testing.T, db kit.Database) {
		b := newBench(t, db, func(c *retry.Config) {
			rarely(c)
			c.KeyOrder = retry.BlockWhileRetried
		})
		var calls atomic.Int32
		b.run(func(*message.Message) error {
			calls.Add(1)
			return nil
		})
		for n := range 3 {
			if msg := keyed(fmt.Sprint("a-", n)); !b.transport.deliver(t, msg) {
				t.Fatal("not acked")
			}
		}
		b.Eventually("all are handled", func() bool { return calls.Load() == 3 })
		b.allHandled()
	})
}

// If more messages are due than may be claimed, further messages are claimed as soon as
// there is room.
func TestDueMessagesBeyondTheCapacityDoNotWaitForAPoll(t *testing.T) {
	kit.Long(t)
	t.Parallel()
	kit.EachDatabase(t, func(t *testing.T, db kit.Database) {
		b := newBench(t, db, func(c *retry.Config) {
			rarely(c)
			c.Concurrency = 2
		})
		for n := range 9 {
			b.put(fmt.Sprint("m", n))
		}
		b.run(func(*message.Message) error { return nil })
		b.allHandled()
	})
}

// If a head was deleted by hand, the messages behind it are released, logged and handled
// at once.
func TestReleasedSuccessorsDoNotWaitForAPoll(t *testing.T) {
	t.Parallel()
	kit.EachDatabase(t, func(t *testing.T, db kit.Database) {
		logs := &kit.Logs{}
		b := newBench(t, db, func(c *retry.Config) {
			rarely(c)
			c.Lease, c.KeyOrder, c.Logger = shortLease, retry.BlockWhileRetried, logs
		})
		b.store("a-1", "a-2", "b-1", "b-2")
		kit.Exec(t, b, `DELETE FROM once_parked WHERE message_id IN ('a-1', 'b-1')`)
		b.run(func(*message.Message) error { return nil })
		b.allHandled()
		released := func(keys string) int {
			return logs.Count("INFO Messages behind a missing predecessor are released", "consumer="+consumer, "topic="+topic, keys)
		}
		if released("keys=2") != 1 && released("keys=1") != 2 { // a slow machine may need a second try
			t.Errorf("logged %q", logs.Lines())
		}
	})
}

// PostgreSQL accepts statements of at most 1 GB. A hundred messages of the maximum size
// are larger, so they must be stored by several statements. A single statement would fail
// again and again, and later messages would never be handled.
func TestKeyOrderStoresLargeMessagesInSeveralStatements(t *testing.T) {
	kit.Long(t)
	t.Parallel()
	db := kit.Postgres(t)
	b := newBench(t, db, func(c *retry.Config) { c.KeyOrder = retry.BlockWhileRetried })
	sub := b.retries.Subscriber(consumer, b.transport)
	tx := kit.Begin(t, db)
	defer func() { _ = tx.Rollback() }()
	kit.Exec(t, tx, `LOCK TABLE once_parked IN SHARE MODE`)
	messages, err := sub.Subscribe(t.Context(), topic)
	kit.OK(t, err)
	const count, size = 12, 2 << 20
	var sent []*message.Message
	for n := range count { // the other messages arrive while the first one is stored
		msg := message.NewMessage(fmt.Sprint(n), make([]byte, size))
		msg.Metadata[meta.OrderingKey] = fmt.Sprint(n)
		sent = append(sent, msg)
	}
	fed := make(chan struct{})
	go func() {
		defer close(fed)
		for _, msg := range sent {
			b.transport.messages <- msg
		}
	}()
	b.polls(50) // long enough for all messages to arrive
	kit.OK(t, tx.Commit())
	b.Eventually("all are stored", func() bool { return b.Count("once_parked") == count })
	if n := b.Count(`(SELECT FROM once_parked GROUP BY created_at HAVING SUM(length(envelope)) > 12 * 1024 * 1024) AS large`); n != 0 {
		t.Error("more than 12 MiB were stored with one statement")
	}
	for range count {
		(<-messages).Ack()
	}
	<-fed
	for _, msg := range sent {
		<-msg.Acked()
	}
	kit.OK(t, sub.Close())
}
