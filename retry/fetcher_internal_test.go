package retry

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/internal/chain"
	"github.com/watermill-once/once/internal/meta"
	"github.com/watermill-once/once/internal/parkedrows"
	"github.com/watermill-once/once/internal/test/kit"
)

// idleFetcher returns a fetcher for two handlers that is not running. The test calls its
// methods. The fetcher has its own gate, so crashed messages of other tests do not stop it.
func idleFetcher(t *testing.T, db kit.Database) *fetcher {
	t.Helper()
	config := kit.Tables(t, db)
	r, err := New(db.DB, Config{Schema: config, Concurrency: 2, PollInterval: time.Hour})
	kit.OK(t, err)
	f := newFetcher(&subscriber{retries: r, consumer: "payments"}, "orders.placed", nil, 0)
	f.queue, f.gate = newFairQueue(nil), &isolationGate{}
	return f
}

// If the database does not answer, the renewal of the leases ends when the lease ends. A
// later result would be useless, and Close waits for the renewal.
func TestRenewalEndsWithTheLease(t *testing.T) {
	t.Parallel()
	db := kit.Postgres(t)
	f := idleFetcher(t, db)
	kit.OK(t, f.store.Deliver(t.Context(), f.topic, []string{f.consumer}, message.NewMessage("m1", nil)))
	f.fetch(t.Context())
	if len(f.inFlight) != 1 {
		t.Fatalf("%d claims, want one", len(f.inFlight))
	}
	tx := kit.Begin(t, db)
	defer func() { _ = tx.Rollback() }()
	kit.Exec(t, tx, `LOCK TABLE once_parked IN ACCESS EXCLUSIVE MODE`)
	f.config.Lease = 100 * time.Millisecond
	ended := make(chan struct{})
	go func() {
		f.renew(t.Context())
		close(ended)
	}()
	kit.Eventually(t, time.Minute, "the renewal ends", func() bool {
		select {
		case <-ended:
			return true
		default:
			return false
		}
	})
	if !f.failing {
		t.Error("its error is not reported")
	}
}

// A reused result of findDue comes from an earlier query. After this query, messages of
// other tenants may have arrived, and heads of keys may have been settled. The new
// messages, and the next messages of these keys, must not wait for the next poll.
func TestReusedLookIsFollowedByNewLook(t *testing.T) {
	kit.Long(t)
	kit.EachDatabase(t, func(t *testing.T, db kit.Database) {
		f := idleFetcher(t, db)
		deliver := func(tenant string, ids ...string) {
			t.Helper()
			for _, id := range ids {
				msg := message.NewMessage(id, nil)
				msg.Metadata[meta.TenantID] = tenant
				kit.OK(t, f.store.Deliver(t.Context(), f.topic, []string{f.consumer}, msg))
			}
		}
		// finish resolves the claimed rows and returns their ids.
		finish := func() (ids string) {
			t.Helper()
			for f.queue.len() > 0 {
				c, _ := f.queue.next()
				ids += c.Message.UUID + " "
				kit.OK(t, f.store.Resolve(t.Context(), c.Claim))
				f.remove(c.Claim)
			}
			return ids
		}

		deliver("a", "a1", "a2", "a3", "a4", "a5")
		if again := f.fetch(t.Context()); !again || finish() != "a1 a2 " {
			t.Fatal("want a1 and a2, or a6 and a7, and another fetch")
		}
		deliver("b", "b1")
		f.dueAt = time.Now().Add(time.Hour) // the result can then be reused even on a slow machine
		if again := f.fetch(t.Context()); !again || finish() != "a3 a4 " {
			t.Fatal("want a3 and a4 from the reused look")
		}
		f.dueAt = time.Now().Add(time.Hour)
		if again := f.fetch(t.Context()); !again || !f.moreDue || finish() != "a5 " {
			t.Fatal("want a5 from the reused look, and another look")
		}
		if again := f.fetch(t.Context()); again || finish() != "b1 " {
			t.Fatal("want b1 from the new look")
		}

		// A result older than reuseDue must not be used again.
		deliver("a", "a6", "a7", "a8")
		if again := f.fetch(t.Context()); !again || finish() != "a6 a7 " {
			t.Fatal("want a1 and a2, or a6 and a7, and another fetch")
		}
		deliver("b", "b2")
		crashDue(t, f)
		f.dueAt = time.Now().Add(-reuseDue)
		f.fetch(t.Context())
		f.requestIsolation(false)
		if finish() == "" || len(f.inFlight) > 0 {
			t.Error("nothing was fetched")
		}
		if due, err := f.store.Due(t.Context(), parkedrows.Select{Consumer: f.consumer, Topic: f.topic, Limit: 1}); err != nil || due.Crashed {
			t.Errorf("the crashed message was skipped, %v", err)
		}
	})
}

// If another process has locked the only due row, the fetcher must pause between fetches,
// so that it can renew leases.
func TestLockedRowsAreNotFetchedInALoop(t *testing.T) {
	t.Parallel()
	db := kit.Postgres(t)
	f := idleFetcher(t, db)
	for n := range 100 {
		msg := message.NewMessage(fmt.Sprint(n), nil)
		msg.Metadata[meta.TenantID] = fmt.Sprint(n)
		kit.OK(t, f.store.Deliver(t.Context(), f.topic, []string{f.consumer}, msg))
	}
	later := `UPDATE once_parked SET priority_class = 'retry',
		due_at = now() + CASE WHEN message_id = '1' THEN interval '0' ELSE interval '1 hour' END`
	kit.Exec(t, db, later)
	tx := kit.Begin(t, db)
	defer func() { _ = tx.Rollback() }()
	kit.Exec(t, tx, `UPDATE once_parked SET error = 'locked' WHERE message_id = '1'`)
	if again := f.fetch(t.Context()); again || f.queue.len() > 0 {
		t.Fatalf("%d messages fetched, fetch again is %v; want 0 and false", f.queue.len(), again)
	}
	kit.OK(t, tx.Rollback())
	if f.fetch(t.Context()); f.queue.len() != 1 {
		t.Fatalf("%d messages fetched, want 1", f.queue.len())
	}
	c, _ := f.queue.next()
	f.remove(c.Claim)
}

// If a context ends between two statements, lib/pq returns the error "bad connection".
// During a shutdown, this must not be logged as a failure.
func TestShutdownIsNotLoggedAsFailure(t *testing.T) {
	t.Parallel()
	log := watermill.NewCaptureLogger()
	f := newFetcher(&subscriber{retries: &Retries{config: Config{Logger: log}}}, "orders.placed", nil, 0)
	ended, end := context.WithCancel(t.Context())
	end()
	f.report(ended, driver.ErrBadConn)
	if got := log.Captured()[watermill.ErrorLogLevel]; len(got) != 0 {
		t.Errorf("logged %v", got)
	}
	f.report(t.Context(), driver.ErrBadConn)
	if got := log.Captured()[watermill.ErrorLogLevel]; len(got) != 1 {
		t.Errorf("logged %v for an unreachable database, want one line", got)
	}
}

// A failed fetch must be repeated soon, even if PollInterval is long.
func TestFailedFetchIsRepeated(t *testing.T) {
	kit.Long(t)
	kit.EachDatabase(t, func(t *testing.T, db kit.Database) {
		f := idleFetcher(t, db)
		logs := &kit.Logs{}
		closing, ended, out := make(chan struct{}), make(chan struct{}), make(chan *message.Message)
		f.config.Logger, f.closing = logs, closing
		kit.OK(t, f.store.Deliver(t.Context(), f.topic, []string{f.consumer}, message.NewMessage("1", nil)))
		rename := func(from, to string) {
			kit.Exec(t, db, `ALTER TABLE `+from+` RENAME TO `+to)
		}
		rename("once_parked", "away")
		go func() {
			defer close(ended)
			f.run(t.Context(), out)
		}()
		kit.Eventually(t, time.Minute, "the fetch has failed", func() bool { return logs.Has("ERROR") })
		rename("away", "once_parked")
		select {
		case msg := <-out:
			msg.Ack()
		case <-time.After(time.Minute):
			t.Error("the message was not fetched")
		}
		close(closing)
		<-ended
	})
}

func fetcherOf(c Config, gathers int) *fetcher {
	return newFetcher(&subscriber{retries: &Retries{config: c.withDefaults()}, consumer: "payments"}, "orders.placed", nil, gathers)
}

// With KeyOrder, four messages are claimed in advance for each handler. If the handler
// has batches, the fetcher raises Concurrency only if Concurrency has its default
// value.
func TestFetcherClaimsAsManyAsItsHandlersNeed(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		config                Config
		gathers               int
		concurrency, capacity int
	}{
		"unordered":                     {Config{Concurrency: 3}, 0, 3, 3},
		"in order":                      {Config{Concurrency: 3, KeyOrder: BlockWhileRetried}, 0, 3, 15},
		"in batches":                    {Config{}, 1000, 1000, 1000},
		"in batches, with a number":     {Config{Concurrency: 3}, 1000, 3, 3},
		"in batches smaller than usual": {Config{}, 1, Config{}.withDefaults().Concurrency, Config{}.withDefaults().Concurrency},
	} {
		if f := fetcherOf(c.config, c.gathers); f.concurrency != c.concurrency || f.capacity() != c.capacity {
			t.Errorf("%s: %d handlers, %d claims; want %d and %d", name, f.concurrency, f.capacity(), c.concurrency, c.capacity)
		}
	}
}

// After a failure, the fetcher queries the table again within a second.
func TestFailingFetcherAsksAtLeastEverySecond(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		failing    bool
		poll, want time.Duration
	}{
		{false, time.Hour, time.Hour},
		{true, time.Hour, time.Second},
		{true, time.Millisecond, time.Millisecond},
	} {
		f := fetcherOf(Config{PollInterval: c.poll}, 0)
		if f.failing = c.failing; f.pollInterval() != c.want {
			t.Errorf("failing %t, PollInterval %v: %v, want %v", c.failing, c.poll, f.pollInterval(), c.want)
		}
	}
}

func TestFetchFailuresAreLoggedOnce(t *testing.T) {
	t.Parallel()
	var logs kit.Logs
	f := fetcherOf(Config{Logger: &logs}, 0)
	for range 2 {
		f.report(t.Context(), errors.New("away"))
		f.report(t.Context(), errors.New("away"))
		f.report(t.Context(), nil)
		f.report(t.Context(), nil)
	}
	failed := logs.Count("ERROR Parked messages cannot be fetched, retrying", "consumer=payments", "topic=orders.placed", "err=away")
	works := logs.Count("INFO Parked messages are fetched again", "consumer=payments", "topic=orders.placed")
	if failed != 2 || works != 2 || len(logs.Lines()) != 4 {
		t.Errorf("logged %q", logs.Lines())
	}
}

func TestBufferFitsAsManyRowsAsItHasRoomFor(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ bytes, rowSize, rows, want int }{
		{0, 0, 7, 7},
		{0, 20, 7, 5},
		{0, 20, 3, 3},
		{41, 20, 7, 2},
		{99, 20, 7, 1}, // the result is at least one
		{99, 0, 7, 7},
		{100, 20, 7, 0},
		{100, 0, 7, 0},
		{120, 0, 7, 0},
	} {
		b := &buffer{limit: 100, bytes: c.bytes, rowSize: c.rowSize}
		if got := b.fit(c.rows); got != c.want {
			t.Errorf("%+v: %d rows fit", c, got)
		}
	}
	b := &buffer{}
	claimed := func(sizes ...int) (rows []parkedrows.Claimed) {
		for _, size := range sizes {
			rows = append(rows, parkedrows.Claimed{Claim: &parkedrows.Claim{Size: size}})
		}
		return rows
	}
	for _, c := range []struct {
		rows []parkedrows.Claimed
		want int
	}{{claimed(10, 80, 20), 80}, {claimed(10), 40}, {nil, 20}, {claimed(30), 30}} {
		if b.observe(c.rows); b.rowSize != c.want {
			t.Errorf("the estimate is %d, want %d", b.rowSize, c.want)
		}
	}
	if b.tooLarge(errors.New("other")) || b.rowSize != 30 {
		t.Errorf("another error changes the estimate to %d", b.rowSize)
	}
	if !b.tooLarge(&parkedrows.LargeError{Size: 90}) || b.rowSize != 90 {
		t.Errorf("the estimate is %d, want 90", b.rowSize)
	}
}

// The third call with an undecided outcome counts. Tries that did not call the handler
// never count, even if they take long.
func TestThirdUndecidedCallCounts(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		called, notCalled := &chain.Error{Kind: chain.Undecided}, &chain.Error{Kind: chain.Undecided, NotCalled: true}
		contended := &chain.Error{Kind: chain.Undecided, Contended: true} // never counts as one of the three
		newAttempt := func() *attempt {
			return &attempt{
				ctx: t.Context(), Retries: &Retries{config: Config{UnackedWait: time.Minute}},
				delivery: &parkedrows.Delivery{Consumer: "payments"}, original: message.NewMessage("m1", nil),
			}
		}
		a := newAttempt()
		for n, c := range []struct {
			v    *chain.Error
			want bool
		}{{notCalled, false}, {called, false}, {notCalled, false}, {called, false}, {notCalled, false}, {called, true}} {
			if got := a.chargesUndecided(c.v); got != c.want {
				t.Errorf("try %d counts: %t", n, got)
			}
			if before := n >= 1; a.failedBefore != before {
				t.Errorf("try %d: failed before is %t", n, a.failedBefore)
			}
		}
		a = newAttempt()
		for n, c := range []struct {
			v    *chain.Error
			want bool
		}{{contended, false}, {called, false}, {contended, false}, {called, false}, {contended, false}, {called, true}} {
			if got := a.chargesUndecided(c.v); got != c.want {
				t.Errorf("try %d, among conflicts, counts: %t", n, got)
			}
		}
		a = newAttempt()
		a.chargesUndecided(notCalled)
		time.Sleep(time.Minute) //nolint:forbidigo // on the clock of synctest
		if a.chargesUndecided(called) {
			t.Error("a call counts before UnackedWait is over")
		}
		time.Sleep(time.Nanosecond) //nolint:forbidigo // on the clock of synctest
		if a.chargesUndecided(notCalled) || !a.chargesUndecided(called) {
			t.Error("after UnackedWait not exactly the call of the handler counts")
		}
	})
}

// Without retry's Subscriber, a parked message would not be delivered again. So a message
// whose deadline has passed among conflicts returns to its transport.
func TestConflictsWithoutASubscriberParkNothing(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithDeadline(t.Context(), time.Now().Add(-time.Second))
	defer cancel()
	a := &attempt{ // it has no store
		Retries: &Retries{config: Config{}.withDefaults()}, ctx: ctx, delivery: &parkedrows.Delivery{},
		original: message.NewMessage("m1", nil), undecided: undecidedTries{contended: 1, calls: 1},
	}
	if err := a.endUndecided(errConflict); !errors.Is(err, errConflict) {
		t.Errorf("got %v, want the error of the handler", err)
	}
}

var errConflict = errors.New("could not serialize")

// The conflicts of a message begin again if none occurred for a time, or if a call had
// another outcome. So a conflict now and then does not count as an attempt.
func TestConflictsBeginAgainAfterAPause(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var c conflicts
		first := time.Now()
		since := func() time.Time { return c.since("payments", "m1", time.Now(), time.Minute) }
		since()
		time.Sleep(time.Minute) //nolint:forbidigo // on the clock of synctest
		if got := since(); !got.Equal(first) {
			t.Errorf("after a minute, the conflicts began %v later", got.Sub(first))
		}
		time.Sleep(time.Minute + 1) //nolint:forbidigo // on the clock of synctest
		if got, now := since(), time.Now(); !got.Equal(now) {
			t.Errorf("after a longer pause, the conflicts began %v before", now.Sub(got))
		}
		time.Sleep(time.Second) //nolint:forbidigo // on the clock of synctest
		c.end("payments", "m1")
		if got, now := since(), time.Now(); !got.Equal(now) {
			t.Errorf("after another outcome, the conflicts began %v before", now.Sub(got))
		}
		for n := range maxConflicts + 10 {
			c.since("payments", fmt.Sprint(n), time.Now(), time.Minute)
		}
		if len(c.spans) > maxConflicts {
			t.Errorf("%d messages are remembered, want at most %d", len(c.spans), maxConflicts)
		}
	})
}

// A short wait is normal and is not logged. A long wait is logged once, and ends with
// UnackedWait or with a shutdown.
func TestWaitForAnUndecidedMessageIsLoggedAfterASecond(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var logs kit.Logs
		closing := make(chan struct{})
		a := &attempt{
			Retries:  &Retries{config: Config{UnackedWait: time.Minute, Logger: &logs}},
			ctx:      t.Context(),
			delivery: &parkedrows.Delivery{Consumer: "payments", Topic: "orders.placed", Closing: closing},
			original: message.NewMessage("m1", nil),
		}
		away := &chain.Error{Kind: chain.Undecided, NotCalled: true, Err: errors.New("away")}
		began := time.Now()
		for a.chargesUndecided(away); a.waitUndecided(away); a.chargesUndecided(away) {
			waited, logged := time.Since(began), 0
			if waited >= time.Second {
				logged = 1
			}
			if n := logs.Count("ERROR Message is held", "consumer=payments", "topic=orders.placed", "message_uuid=m1", "err=away"); n != logged {
				t.Fatalf("after %v: logged %q", waited, logs.Lines())
			}
		}
		if waited := time.Since(began); waited <= time.Minute || waited > time.Minute+5*time.Second {
			t.Errorf("the wait ended after %v", waited)
		}
		a.undecided = undecidedTries{since: time.Now()}
		close(closing)
		if a.waitUndecided(away) {
			t.Error("the wait does not end with a shutdown")
		}
	})
}

// The delay of After must be at least a millisecond. With a delay of zero, the delay of
// the policy would be used.
func TestAfterIsAtLeastAMillisecond(t *testing.T) {
	t.Parallel()
	for d, want := range map[time.Duration]time.Duration{
		0: time.Millisecond, -time.Hour: time.Millisecond, time.Millisecond: time.Millisecond, time.Hour: time.Hour,
	} {
		err := After(errors.New("later"), d)
		if v := chain.Of(err); v.After != want || v.Kind != chain.Failed || v.Reason != chain.ReasonFailed {
			t.Errorf("After(err, %v): %+v", d, v)
		}
	}
}

// If a message was given up on but could not be quarantined, the pause before its next
// try must be as long as the pause before its last round.
func TestPauseWithoutAQuarantineIsTheLongestOfThePolicy(t *testing.T) {
	t.Parallel()
	for delayed, want := range map[int]time.Duration{-1: time.Second, 1: time.Second, 3: 25 * time.Second} {
		f := fetcherOf(Config{Policy: Policy{Delayed: delayed, Jitter: -1}}, 0)
		if got := f.longestPause(); got != want {
			t.Errorf("with %d delayed rounds it is %v, want %v", delayed, got, want)
		}
	}
}
