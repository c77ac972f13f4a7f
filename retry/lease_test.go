package retry_test

import (
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/dedup"
	"github.com/watermill-once/once/internal/disposition"
	"github.com/watermill-once/once/internal/parked"
	"github.com/watermill-once/once/internal/testkit"
	"github.com/watermill-once/once/poison"
	"github.com/watermill-once/once/retry"
)

const shortLease = 500 * time.Millisecond

func withShortLease(c *retry.Config) {
	c.Lease, c.Policy.Immediate = shortLease, 5
}

func TestLeaseIsRenewedWhileHandlerRuns(t *testing.T) {
	t.Parallel()
	testkit.EachDatabase(t, func(t *testing.T, db testkit.Database) {
		b := newBench(t, db, func(c *retry.Config) { c.Lease, c.Concurrency = shortLease, 4 })
		var calls atomic.Int32
		var first time.Time
		b.run(func(*message.Message) error {
			if calls.Add(1) == 1 {
				first = b.entries("")[0].DueAt
				b.eventually("the lease is renewed three times", func() bool {
					entries := b.entries("")
					return len(entries) == 1 && entries[0].DueAt.Sub(first) > 2*shortLease
				})
			}
			return nil
		})
		if err := b.parked.Deliver(t.Context(), topic, []string{consumer}, message.NewMessage("m1", nil)); err != nil {
			t.Fatal(err)
		}
		b.eventually("the row is gone", func() bool { return len(b.entries("")) == 0 })
		if n := calls.Load(); n != 1 {
			t.Fatalf("the handler ran %d times", n)
		}
	})
}

// A process that cannot reach the database cannot renew its leases. Another process may
// then give up on the message, so the first process must not call the handler again.
func TestTrap48HandlerIsNotCalledAfterLeaseEnd(t *testing.T) {
	t.Parallel()
	var logs testkit.Logs
	b := newBench(t, testkit.Postgres(t), func(c *retry.Config) {
		withShortLease(c)
		c.Logger = &logs
	})
	b.put("m1")
	blocked, err := b.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
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
		if _, err := blocked.ExecContext(t.Context(), `SELECT FROM once_parked FOR UPDATE`); err != nil {
			t.Error(err)
		}
		claim := parked.DeliveryOf(msg.Context()).Claim
		b.eventually("the lease has ended", func() bool { return !claim.Leased() })
		return disposition.HandBack(errHandler)
	})
	b.eventually("the middleware leaves the message to others", func() bool {
		return logs.Has("Lease of the message has ended", "message_uuid=m1")
	})
	released.Store(1)
	if err := blocked.Rollback(); err != nil {
		t.Fatal(err)
	}
	b.eventually("it is handled when it can be claimed again", func() bool { return len(b.entries("")) == 0 })
	if n := calls.Load(); n != 2 {
		t.Errorf("%d calls, want 2", n)
	}
}

// A slow handler may use the only connection of the pool, or SQLite's only write
// transaction. Then its own lease cannot be renewed. Its failure must still be counted.
// Otherwise the handler would be called again and again without end.
func TestFailureAfterLeaseEndIsCharged(t *testing.T) {
	t.Parallel()
	testkit.EachDatabase(t, func(t *testing.T, db testkit.Database) {
		db.SetMaxOpenConns(1)
		b := newBench(t, db, withShortLease)
		b.put("m1")
		quarantine, err := poison.New(b.DB, poison.Config{Schema: b.config})
		if err != nil {
			t.Fatal(err)
		}
		inbox, err := dedup.New(b.DB, dedup.Config{Schema: b.config})
		if err != nil {
			t.Fatal(err)
		}
		var calls atomic.Int32
		b.runWith(func(msg *message.Message) error {
			calls.Add(1)
			claim := parked.DeliveryOf(msg.Context()).Claim
			b.eventually("the lease has ended", func() bool { return !claim.Leased() })
			return errHandler
		}, quarantine.Middleware, b.retries.Middleware, inbox.Middleware)
		b.eventually("it is in quarantine", func() bool { return len(b.entries(parked.Quarantined)) == 1 })
		if entry := b.entries(parked.Quarantined)[0]; entry.Attempts != int(calls.Load()) || entry.Reason != disposition.ReasonExhausted {
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
			testkit.EachDatabase(t, func(t *testing.T, db testkit.Database) { loseBeforeTheInbox(t, db, middleware) })
		})
	}
}

func loseBeforeTheInbox(t *testing.T, db testkit.Database, middleware func(*dedup.Inbox) message.HandlerMiddleware) {
	b := newBench(t, db, withShortLease)
	b.put("m1")
	inbox, err := dedup.New(b.DB, dedup.Config{Schema: b.config})
	if err != nil {
		t.Fatal(err)
	}
	var tries, calls atomic.Int32
	wait := func(h message.HandlerFunc) message.HandlerFunc {
		return func(msg *message.Message) ([]*message.Message, error) {
			if tries.Add(1) == 1 {
				b.loseTo(parked.DeliveryOf(msg.Context()).Claim)
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
	b.eventually("it is handled under another claim", func() bool { return len(b.entries("")) == 0 })
	if tries.Load() != 2 || calls.Load() != 1 {
		t.Errorf("%d tries, %d calls, want 2 and 1", tries.Load(), calls.Load())
	}
}

// loseTo simulates the end of a lease: another process claims the row, and releases it
// when the first process has noticed the lost claim.
func (b *bench) loseTo(claim *parked.Claim) {
	b.Helper()
	other := b.parked.Dialect().SQL(`UPDATE {parked} SET token = 'other', due_at = {after $2} WHERE id = $1`)
	for _, due := range []time.Duration{time.Hour, 0} {
		if _, err := b.ExecContext(b.Context(), other, claim.ID, due.Milliseconds()); err != nil {
			b.Error(err)
		}
		b.eventually("the lease has ended", func() bool { return !claim.Leased() })
	}
}

// If a claim takes longer than the lease, the claim fails, and smaller claims must be
// tried. The same claim would fail again and again. A trigger makes each claimed row
// slow, like a large message on a slow network.
func TestClaimSlowerThanLeaseIsSplit(t *testing.T) {
	t.Parallel()
	b := newBench(t, testkit.Postgres(t), func(c *retry.Config) { c.Lease, c.Concurrency = time.Second, 64 })
	for _, query := range []string{
		`CREATE FUNCTION slowly() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_sleep(0.02); RETURN NEW; END $$`,
		`CREATE TRIGGER slowly BEFORE UPDATE ON once_parked FOR EACH ROW
			WHEN (OLD.token IS NULL AND NEW.token IS NOT NULL) EXECUTE FUNCTION slowly()`,
	} {
		if _, err := b.ExecContext(t.Context(), query); err != nil {
			t.Fatal(err)
		}
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
	b.eventually("all are handled", func() bool { return b.count("once_parked") == 0 })
	if n := calls.Load(); n != count {
		t.Errorf("%d calls, want %d", n, count)
	}
}
