package retry

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/internal/disposition"
	"github.com/watermill-once/once/internal/parked"
	"github.com/watermill-once/once/internal/testkit"
)

// refuse makes the database refuse each update of a row for which the condition is true.
func refuse(t *testing.T, db testkit.Database, condition string) {
	t.Helper()
	_, err := db.ExecContext(t.Context(), `
		CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'refused'; END $$;
		CREATE TRIGGER refuse BEFORE UPDATE ON once_parked FOR EACH ROW WHEN (`+condition+`) EXECUTE FUNCTION refuse()`)
	if err != nil {
		t.Fatal(err)
	}
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
	db, logs := testkit.Postgres(t), &testkit.Logs{}
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
	if _, err := db.ExecContext(t.Context(), `DELETE FROM once_parked`); err != nil {
		t.Fatal(err)
	}
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
	db := testkit.Postgres(t)
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
	testkit.EachDatabase(t, func(t *testing.T, db testkit.Database) {
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
	testkit.EachDatabase(t, func(t *testing.T, db testkit.Database) {
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
	})
}

// If the table cannot be read, it is not known whether a crashed message is due. So other
// subscriptions must not wait for it.
func TestOthersDoNotWaitWhileTheTableCannotBeRead(t *testing.T) {
	t.Parallel()
	testkit.EachDatabase(t, func(t *testing.T, db testkit.Database) {
		f := idleFetcher(t, db)
		f.requestIsolation(true)
		back := away(t, db, "once_parked")
		f.fetch(t.Context())
		back()
		if !f.gate.enter(1) {
			t.Fatal("others wait")
		}
		f.gate.leave(1)
	})
}

// If no ack arrives before CloseTimeout, the row of a message that the middleware has
// settled stays as it is.
func TestSettledMessageIsNotReleasedAfterCloseTimeout(t *testing.T) {
	t.Parallel()
	testkit.EachDatabase(t, func(t *testing.T, db testkit.Database) {
		logs := &testkit.Logs{}
		f := idleFetcher(t, db)
		f.config.Logger, f.patience.Logger, f.finished = logs, logs, make(chan *parked.Claim, 1)
		deliver(t, f, "m1")
		f.fetch(t.Context())
		c, _ := f.queue.next()
		if err := f.store.Postpone(t.Context(), f.consumer, c.Claim, parked.Failure{Attempts: 1}, time.Hour); err != nil {
			t.Fatal(err)
		}
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
	testkit.EachDatabase(t, func(t *testing.T, db testkit.Database) {
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
		due, err := f.store.Due(t.Context(), parked.Select{Consumer: f.consumer, Topic: f.topic})
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
	claimed := func(crashes int, err error) parked.Claimed {
		return parked.Claimed{Claim: &parked.Claim{Crashes: crashes, Attempts: 7}, Err: err}
	}
	for _, crashes := range []int{1, 3} {
		if why := f.unrunnable(claimed(crashes, nil)); why != nil {
			t.Errorf("after %d crashes: %v", crashes-1, why)
		}
	}
	why := f.unrunnable(claimed(4, nil))
	if why == nil || why.Kind != disposition.Permanent || !why.NotCalled || why.Reason != disposition.ReasonCrashed || why.Attempts != 7 ||
		!strings.Contains(why.Error(), "the process ended 3 times") {
		t.Errorf("after 3 crashes: %+v", why)
	}
	noJSON := errors.New("no JSON")
	if why := f.unrunnable(claimed(4, noJSON)); why == nil || why.Reason != disposition.ReasonUndecodable || !errors.Is(why, noJSON) {
		t.Errorf("an undecodable message: %+v", why)
	}
	if got := withoutContent(message.NewMessage("m1", []byte("body"))); got.UUID != "m1" || len(got.Payload) != 0 || len(got.Metadata) != 0 {
		t.Errorf("without its content it is %+v", got)
	}
}
