package retry

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/internal/chain"
	"github.com/watermill-once/once/internal/meta"
	"github.com/watermill-once/once/internal/parkedrows"
	"github.com/watermill-once/once/internal/test/kit"
)

// refuse makes the database refuse each update of a row for which the condition is true.
func refuse(t *testing.T, db kit.Database, condition string) {
	t.Helper()
	kit.Exec(t, db, `
		CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'refused'; END $$;
		CREATE TRIGGER refuse BEFORE UPDATE ON once_parked FOR EACH ROW WHEN (`+condition+`) EXECUTE FUNCTION refuse()`)
}

// empty removes the queued messages, and returns their number.
func (f *fetcher) empty() (removed int) {
	for _, claim := range f.queue.clear() {
		f.remove(claim)
		removed++
	}
	return removed
}

// If a crashed message cannot be claimed, the fetcher must not report success until it
// has tried again. Otherwise the failure would be logged every second. When no message is
// due any more, the fetcher works again.
func TestCrashedMessageThatCannotBeClaimedIsLoggedOnce(t *testing.T) {
	t.Parallel()
	db, logs := kit.Postgres(t), &kit.Logs{}
	f := idleFetcher(t, db)
	f.config.Logger = logs
	deliver(t, f, "crashed")
	crashDue(t, f)
	refuse(t, db, `OLD.crashes > 0`)
	f.fetch(t.Context())
	f.missedCrash = time.Now().Add(time.Hour) // makes sure that the time has not passed yet, even on a slow machine
	f.fetch(t.Context())
	if !f.failing || logs.Count("ERROR Parked messages cannot be fetched") != 1 || len(logs.Lines()) != 1 {
		t.Errorf("failing %t, logged %q", f.failing, logs.Lines())
	}
	kit.Exec(t, db, `DELETE FROM once_parked`)
	f.missedCrash = time.Time{}
	f.fetch(t.Context())
	if f.failing || logs.Count("INFO Parked messages are fetched again") != 1 || len(logs.Lines()) != 2 {
		t.Errorf("failing %t, logged %q", f.failing, logs.Lines())
	}
}

// After a failed claim, fetch must not be called again immediately, even if the claim used
// an earlier result of findDue. But more messages may be due.
func TestFailedClaimIsNotRepeatedAtOnce(t *testing.T) {
	t.Parallel()
	db := kit.Postgres(t)
	f := idleFetcher(t, db)
	for n := range 5 {
		deliver(t, f, fmt.Sprint(n))
	}
	if again := f.fetch(t.Context()); !again || f.empty() != 2 || f.due == nil {
		t.Fatal("want two messages, and a result that can be used again")
	}
	refuse(t, db, `true`)
	f.dueAt = time.Now().Add(time.Hour) // the result can then be used again even on a slow machine
	if again := f.fetch(t.Context()); again || !f.failing || !f.moreDue || f.empty() != 0 {
		t.Errorf("fetch again is %t, failing %t, more due %t", again, f.failing, f.moreDue)
	}
}

// A fetcher whose handlers are all busy claims nothing.
func TestFetcherClaimsNoMoreThanItsHandlersNeed(t *testing.T) {
	t.Parallel()
	kit.EachDatabase(t, func(t *testing.T, db kit.Database) {
		f := idleFetcher(t, db)
		for n := range 4 {
			deliver(t, f, fmt.Sprint(n))
		}
		f.fetch(t.Context())
		f.queue.clear() // the handlers have taken them
		if again := f.fetch(t.Context()); again || len(f.inFlight) != 2 {
			t.Errorf("fetch again is %t, %d messages are claimed for two handlers", again, len(f.inFlight))
		}
		for claim := range f.inFlight {
			f.remove(claim)
		}
	})
}

// After a claim that got all the rows it asked for, more rows may be due, so the fetcher
// looks again when a message is finished. After a smaller claim it does not.
func TestFullClaimMayLeaveDueRows(t *testing.T) {
	t.Parallel()
	kit.EachDatabase(t, func(t *testing.T, db kit.Database) {
		f := idleFetcher(t, db) // for two messages
		deliver(t, f, "m1")
		deliver(t, f, "m2")
		deliver(t, f, "m3")
		for _, want := range []struct {
			claimed int
			more    bool
		}{{2, true}, {1, false}} {
			f.due = nil // the result of an earlier query would be reused for a moment
			f.fetch(t.Context())
			if n := f.queue.len(); n != want.claimed || f.moreDue != want.more {
				t.Fatalf("%d claimed, more may be due: %t, want %+v", n, f.moreDue, want)
			}
			for _, claim := range f.queue.clear() {
				f.remove(claim)
			}
		}
		var all []*message.Message
		for n := range 70 {
			msg := message.NewMessage(fmt.Sprint("of tenant ", n), nil)
			msg.Metadata[meta.TenantID] = fmt.Sprint(n)
			all = append(all, msg)
		}
		kit.OK(t, f.store.Deliver(t.Context(), f.topic, []string{f.consumer}, all...))
		if f.fetch(t.Context()); f.queue.len() != 2 || f.due != nil {
			t.Errorf("%d claimed; a query that has not seen all tenants is used again: %t", f.queue.len(), f.due != nil)
		}
	})
}

// If the table cannot be read, it is not known whether a crashed message is due. So other
// subscriptions must not wait for it.
func TestOthersDoNotWaitWhileTheTableCannotBeRead(t *testing.T) {
	t.Parallel()
	kit.EachDatabase(t, func(t *testing.T, db kit.Database) {
		f := idleFetcher(t, db)
		f.requestIsolation(true)
		back := away(t, db, "once_parked")
		f.fetch(t.Context())
		back()
		if !f.gate.enter(1, nil) {
			t.Fatal("others wait")
		}
		f.gate.leave(1)
	})
}

// If no ack arrives before CloseTimeout, the row of a message that the middleware has
// settled stays as it is.
func TestSettledMessageIsNotReleasedAfterCloseTimeout(t *testing.T) {
	t.Parallel()
	kit.EachDatabase(t, func(t *testing.T, db kit.Database) {
		logs := &kit.Logs{}
		f := idleFetcher(t, db)
		f.config.Logger, f.patience.Logger, f.finished = logs, logs, make(chan *parkedrows.Claim, 1)
		deliver(t, f, "m1")
		f.fetch(t.Context())
		c, _ := f.queue.next()
		kit.OK(t, f.store.Postpone(t.Context(), f.consumer, c.Claim, parkedrows.Failure{Attempts: 1}, time.Hour))
		f.abandon(t.Context(), f.delivery(c.Claim))
		if len(f.finished) != 1 || f.unanswered.Load() != 1 || len(logs.Lines()) != 0 {
			t.Errorf("finished %d, unanswered %d, logged %q", len(f.finished), f.unanswered.Load(), logs.Lines())
		}
		f.remove(c.Claim)
	})
}

// An unrunnable message that waits for the middleware is released when the consumer shuts
// down, so that the next process can claim it immediately.
func TestWaitForTheMiddlewareEndsWithAShutdown(t *testing.T) {
	t.Parallel()
	kit.EachDatabase(t, func(t *testing.T, db kit.Database) {
		f := idleFetcher(t, db)
		closing := make(chan struct{})
		close(closing)
		f.closing = closing
		deliver(t, f, "m1")
		f.fetch(t.Context())
		claims := f.queue.clear()
		if f.awaitMiddleware(t.Context(), f.delivery(claims[0]), errors.New("crashed")) || !claims[0].Settled() {
			t.Error("the message is not released")
		}
		f.remove(claims[0])
		due, err := f.store.Due(t.Context(), parkedrows.Select{Consumer: f.consumer, Topic: f.topic})
		if err != nil || !due.Fresh() {
			t.Errorf("the message is not due, %v", err)
		}
		f.closing = nil
		f.Retries.use()
		if !f.awaitMiddleware(t.Context(), f.delivery(nil), nil) {
			t.Error("the middleware counts as unused")
		}
	})
}

// The crash count includes the current claim. A handler runs a message until as many
// processes have died as the budget allows.
func TestCrashBudgetDoesNotCountTheCurrentClaim(t *testing.T) {
	t.Parallel()
	f := fetcherOf(Config{CrashBudget: 3}, 0)
	claimed := func(crashes int, err error) parkedrows.Claimed {
		return parkedrows.Claimed{Claim: &parkedrows.Claim{Crashes: crashes, Attempts: 7}, Err: err}
	}
	for _, crashes := range []int{1, 3} {
		if why := f.unrunnable(claimed(crashes, nil)); why != nil {
			t.Errorf("after %d crashes: %v", crashes-1, why)
		}
	}
	why := f.unrunnable(claimed(4, nil))
	if why == nil || why.Kind != chain.Permanent || !why.NotCalled || why.Reason != chain.ReasonCrashed || why.Attempts != 7 ||
		!strings.Contains(why.Error(), "the process ended 3 times") {
		t.Errorf("after 3 crashes: %+v", why)
	}
	noJSON := errors.New("no JSON")
	if why := f.unrunnable(claimed(4, noJSON)); why == nil || why.Reason != chain.ReasonUndecodable || !errors.Is(why, noJSON) {
		t.Errorf("an undecodable message: %+v", why)
	}
	if got := withoutContent(message.NewMessage("m1", []byte("body"))); got.UUID != "m1" || len(got.Payload) != 0 || len(got.Metadata) != 0 {
		t.Errorf("without its content it is %+v", got)
	}
}

// bufferedFetcher returns a fetcher that claims at most 12 messages and about one MiB.
func bufferedFetcher(t *testing.T, db kit.Database) *fetcher {
	t.Helper()
	f := idleFetcher(t, db)
	f.stored.Ahead = 10
	f.buffer.limit = 1 << 20
	return f
}

func (f *fetcher) arrive(t *testing.T, tenant, id string, size int) {
	t.Helper()
	msg := message.NewMessage(id, make([]byte, size))
	msg.Metadata[meta.TenantID] = tenant
	kit.OK(t, f.store.Deliver(t.Context(), f.topic, []string{f.consumer}, msg))
}

// drain fetches until the buffer is full. It resolves the claimed rows, and returns their
// ids and their total bytes.
func (f *fetcher) drain(t *testing.T) (ids string, bytes int) {
	t.Helper()
	for fetches := 0; f.fetch(t.Context()); fetches++ {
		if fetches == 100 {
			t.Fatal("the buffer does not become full")
		}
	}
	for f.queue.len() > 0 {
		c, _ := f.queue.next()
		ids += c.Message.UUID + " "
		bytes += len(c.Message.Payload)
		kit.OK(t, f.store.Resolve(t.Context(), c.Claim))
		f.remove(c.Claim)
	}
	return ids, bytes
}

// The bytes of claimed messages must stay within the limit, which only the last message
// may exceed. As with small messages, messages must keep their order and tenants must
// take turns.
func TestBufferBytesLimitLargeMessages(t *testing.T) {
	kit.Long(t)
	t.Parallel()
	kit.EachDatabase(t, func(t *testing.T, db kit.Database) {
		f := bufferedFetcher(t, db)
		for n := range 4 {
			for _, tenant := range []string{"a", "b", "c"} {
				f.arrive(t, tenant, fmt.Sprint(tenant, n), 400<<10)
			}
		}
		for n := range 4 {
			if ids, bytes := f.drain(t); ids != fmt.Sprintf("a%[1]d b%[1]d c%[1]d ", n) {
				t.Fatalf("%q of %d bytes are claimed at once", ids, bytes)
			}
		}
	})
}

// A message larger than the whole buffer must be claimed alone, and must not delay the
// messages after it.
func TestMessageLargerThanBufferIsClaimedAlone(t *testing.T) {
	t.Parallel()
	kit.EachDatabase(t, func(t *testing.T, db kit.Database) {
		f := bufferedFetcher(t, db)
		f.arrive(t, "a", "large", 3<<20)
		want := ""
		for n := range 8 {
			f.arrive(t, "a", fmt.Sprint(n), 1)
			want += fmt.Sprint(n, " ")
		}
		if ids, _ := f.drain(t); ids != "large " {
			t.Fatalf("%q are claimed, want the large message alone", ids)
		}
		got, drains := "", 0
		for ; got != want && drains < 8; drains++ {
			ids, _ := f.drain(t)
			got += ids
		}
		if got != want || drains > 2 {
			t.Fatalf("%q came after the large message, in %d steps", got, drains)
		}
		if n := f.gate.inFlight; n != 0 {
			t.Errorf("%d messages count as in flight after all have finished", n)
		}
	})
}

// The limit must also hold if large and small messages alternate.
func TestBufferBytesHoldForMixedSizes(t *testing.T) {
	kit.Long(t)
	t.Parallel()
	const large = 500 << 10
	kit.EachDatabase(t, func(t *testing.T, db kit.Database) {
		f := bufferedFetcher(t, db)
		want, got := "", ""
		for n := range 60 {
			size := 1
			if n%12 >= 9 {
				size = large
			}
			f.arrive(t, "a", fmt.Sprint(n), size)
			want += fmt.Sprint(n, " ")
		}
		for drains := 0; got != want; drains++ {
			ids, bytes := f.drain(t)
			if bytes > f.buffer.limit+large || ids == "" || drains > 30 {
				t.Fatalf("%q of %d bytes are claimed at once, after %q, in step %d", ids, bytes, got, drains)
			}
			got += ids
		}
	})
}

// Each claim updates the estimated size of a row. After a large row, the estimate
// decreases claim by claim, so that later claims take many small rows again.
func TestClaimsUpdateTheEstimatedRowSize(t *testing.T) {
	t.Parallel()
	f := bufferedFetcher(t, kit.SQLite(t))
	f.arrive(t, "a", "large", 400<<10)
	f.drain(t)
	large := f.buffer.rowSize
	if large < 400<<10 {
		t.Fatalf("%d bytes are expected after a row of 400 KiB", large)
	}
	f.arrive(t, "a", "small", 1)
	if f.drain(t); f.buffer.rowSize > large/2 || f.buffer.rowSize == 0 {
		t.Errorf("%d bytes are expected after a small row, before it %d", f.buffer.rowSize, large)
	}
}

func add(l *fairQueue, tenant string, count int) {
	for n := range count {
		l.add(parkedrows.Claimed{
			Claim:   &parkedrows.Claim{Turn: parkedrows.TenantTurn{PriorityClass: "live", Tenant: tenant}},
			Message: message.NewMessage(fmt.Sprint(tenant, n), nil),
		})
	}
}

// A tenant with few messages must not wait for all messages of another tenant. Messages
// of one tenant must keep their order.
func TestFairQueueTenantsTakeTurns(t *testing.T) {
	l := newFairQueue(nil)
	add(l, "a", 64)
	add(l, "b", 3)
	add(l, "c", 1)
	got := ""
	for range 8 {
		c, _ := l.next()
		got += c.Message.UUID + " "
	}
	if want := "a0 b0 c0 a1 b1 a2 b2 a3 "; got != want {
		t.Errorf("handed out %s, want %s", got, want)
	}
	if left := l.clear(); len(left) != 60 || l.len() != 0 {
		t.Errorf("%d claims are returned, %d stay", len(left), l.len())
	}
	add(l, "d", 1)
	l.close()
	if c, ok := l.next(); !ok || c.Message.UUID != "d0" {
		t.Error("the queued message is gone")
	}
	if _, ok := l.next(); ok {
		t.Error("next returns a message after the end of the queue")
	}
}

// During a shutdown the queue must not return any message, because the fetcher releases
// the queued messages.
func TestFairQueueHandsOutNothingDuringShutdown(t *testing.T) {
	closing := make(chan struct{})
	l := newFairQueue(closing)
	add(l, "a", 2)
	if _, ok := l.next(); !ok {
		t.Error("nothing was handed out")
	}
	close(closing)
	if c, ok := l.next(); ok {
		t.Errorf("%s was handed out", c.Message.UUID)
	}
	if left := l.clear(); len(left) != 1 {
		t.Errorf("%d are left", len(left))
	}
}
