package retry_test

import (
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/internal/meta"
	"github.com/watermill-once/once/internal/parked"
	"github.com/watermill-once/once/internal/testkit"
	"github.com/watermill-once/once/internal/verdict"
	"github.com/watermill-once/once/retry"
)

// crash does what a process does that is killed while it handles rows: it
// claims them and is never heard of again.
func (b *bench) crash(limit int, suspects bool) {
	b.Helper()
	claimed, err := b.parked.Claim(b.Context(), parked.Select{
		Consumer: consumer, Topic: topic, Owner: "killed", Limit: limit, Lease: time.Millisecond, Suspects: suspects,
	})
	if err != nil || len(claimed) == 0 {
		b.Fatalf("claimed %d rows, %v", len(claimed), err)
	}
	b.eventually("the lease is over", func() bool {
		fresh, suspect, err := b.parked.Due(b.Context(), parked.Select{Consumer: consumer, Topic: topic})
		return err == nil && (fresh || suspect)
	})
}

// A message under which the process keeps ending is given up without being run
// again.
func TestTrap48AMessageThatKillsTheProcessIsGivenUp(t *testing.T) {
	testkit.EachDatabase(t, func(t *testing.T, db testkit.Database) {
		b := newBench(t, db, func(c *retry.Config) { c.CrashBudget = 2 })
		if err := b.parked.Deliver(t.Context(), topic, []string{consumer}, message.NewMessage("killer", nil)); err != nil {
			t.Fatal(err)
		}
		b.crash(1, false)
		b.crash(1, true)
		var calls atomic.Int32
		b.run(func(*message.Message) error {
			calls.Add(1)
			return nil
		})
		b.eventually("it is in quarantine", func() bool { return len(b.entries(parked.Quarantined)) == 1 })
		if entry := b.entries(parked.Quarantined)[0]; calls.Load() != 0 || entry.Reason != verdict.ReasonCrashed {
			t.Fatalf("%d calls, entry %+v", calls.Load(), entry)
		}
	})
}

// Rows that were claimed together with the one that killed the process are
// charged too, but run alone from then on, and are cleared by returning.
func TestTrap49SuspectsRunAlone(t *testing.T) {
	testkit.EachDatabase(t, func(t *testing.T, db testkit.Database) {
		b := newBench(t, db, func(c *retry.Config) { c.Concurrency = 4 })
		for _, id := range []string{"a", "b", "c"} {
			if err := b.parked.Deliver(t.Context(), topic, []string{consumer}, message.NewMessage(id, nil)); err != nil {
				t.Fatal(err)
			}
		}
		b.crash(10, false)
		for _, id := range []string{"d", "e", "f"} {
			if err := b.parked.Deliver(t.Context(), topic, []string{consumer}, message.NewMessage(id, nil)); err != nil {
				t.Fatal(err)
			}
		}
		var mu sync.Mutex
		running := map[string]bool{}
		var together [][2]string
		handled := 0
		b.run(func(msg *message.Message) error {
			mu.Lock()
			for other := range running {
				together = append(together, [2]string{msg.UUID, other})
			}
			running[msg.UUID] = true
			mu.Unlock()
			time.Sleep(5 * time.Millisecond) // long enough for another to run beside it
			mu.Lock()
			delete(running, msg.UUID)
			handled++
			mu.Unlock()
			return nil
		})
		b.eventually("all are handled", func() bool { return len(b.entries("")) == 0 })
		mu.Lock()
		defer mu.Unlock()
		if handled != 6 {
			t.Fatalf("%d handled, want 6", handled)
		}
		for _, pair := range together {
			if pair[0] <= "c" || pair[1] <= "c" {
				t.Fatalf("the suspect ran beside another: %v", pair)
			}
		}
	})
}

// A redelivered message may be one that killed the process: it is counted in
// its row before it is handled again.
func TestTrap48ARedeliveredMessageIsSetAsideFirst(t *testing.T) {
	testkit.EachDatabase(t, func(t *testing.T, db testkit.Database) {
		b := newBench(t, db, nil)
		seen := make(chan parked.Entry, 1)
		b.run(func(msg *message.Message) error {
			seen <- b.entries("")[0]
			return nil
		})
		msg := message.NewMessage("m1", nil)
		msg.Metadata[meta.Redelivered] = "true"
		if !b.transport.deliver(t, msg) {
			t.Fatal("not acked")
		}
		if entry := <-seen; entry.Crashes != 1 || entry.State != parked.Waiting {
			t.Fatalf("while it is handled the row is %+v", entry)
		}
		b.eventually("the row is gone", func() bool { return len(b.entries("")) == 0 })
	})
}

// A lease is renewed for as long as the handler runs.
func TestALeaseLastsAsLongAsTheHandler(t *testing.T) {
	testkit.EachDatabase(t, func(t *testing.T, db testkit.Database) {
		b := newBench(t, db, func(c *retry.Config) { c.Lease, c.Concurrency = 300*time.Millisecond, 4 })
		var calls atomic.Int32
		var first time.Time
		b.run(func(*message.Message) error {
			if calls.Add(1) == 1 {
				first = b.entries("")[0].DueAt
				b.eventually("the lease is renewed three times over", func() bool {
					entries := b.entries("")
					return len(entries) == 1 && entries[0].DueAt.Sub(first) > 600*time.Millisecond
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

// The row of a message that was parked again, or quarantined, is not resolved
// by the router's ack.
func TestTrap70AnAckDoesNotResolveWhatWasParkedAgain(t *testing.T) {
	testkit.EachDatabase(t, func(t *testing.T, db testkit.Database) {
		b := newBench(t, db, func(c *retry.Config) {
			c.Policy = retry.Policy{Immediate: -1, Delayed: 3, Base: time.Hour, Jitter: -1}
		})
		var calls atomic.Int32
		b.run(func(*message.Message) error {
			calls.Add(1)
			return errHandler
		})
		if err := b.parked.Deliver(t.Context(), topic, []string{consumer}, message.NewMessage("m1", nil)); err != nil {
			t.Fatal(err)
		}
		b.eventually("it is parked again", func() bool {
			entries := b.entries(parked.Waiting)
			return len(entries) == 1 && entries[0].Attempts == 1
		})
		if err := b.router.Close(); err != nil { // waits for the ack to be dealt with
			t.Fatal(err)
		}
		if entries := b.entries(parked.Waiting); len(entries) != 1 || calls.Load() != 1 {
			t.Fatalf("%d calls, entries %+v", calls.Load(), entries)
		}
	})
}

// A copy that arrives while the message is parked does not multiply it.
func TestACopyOfAParkedMessageIsTheSameRow(t *testing.T) {
	testkit.EachDatabase(t, func(t *testing.T, db testkit.Database) {
		b := newBench(t, db, func(c *retry.Config) { c.Policy.Base = time.Hour; c.Policy.Max = time.Hour })
		b.run(func(*message.Message) error { return errHandler })
		for range 3 {
			if !b.transport.deliver(t, message.NewMessage("m1", []byte("body"))) {
				t.Fatal("not acked")
			}
		}
		if entries := b.entries(""); len(entries) != 1 {
			t.Fatalf("%d rows, want 1", len(entries))
		}
	})
}
