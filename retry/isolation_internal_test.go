package retry

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/internal/parkedrows"
	"github.com/watermill-once/once/internal/test/kit"
)

// later changes the gate as if isolationTime had passed.
func (g *isolationGate) later() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.since = g.since.Add(-isolationTime)
}

func deliver(t *testing.T, f *fetcher, id string) {
	t.Helper()
	kit.OK(t, f.store.Deliver(t.Context(), f.topic, []string{f.consumer}, message.NewMessage(id, nil)))
}

// crashDue simulates a process that claims a due message and dies.
func crashDue(t *testing.T, f *fetcher) {
	t.Helper()
	sel := parkedrows.Select{Consumer: f.consumer, Topic: f.topic, Owner: "killed", Limit: 1, Lease: time.Millisecond}
	if claimed, err := f.store.Claim(t.Context(), sel); err != nil || len(claimed) != 1 {
		t.Fatalf("%d claimed, %v", len(claimed), err)
	}
	kit.Eventually(t, 20*time.Second, "the message is counted as crashed", func() bool {
		due, err := f.store.Due(t.Context(), sel)
		return err == nil && due.Crashed
	})
}

// fetcherAfterCrash returns a fetcher with two messages. The message "crashed" was
// claimed by a process that died, and "fresh" was not claimed.
func fetcherAfterCrash(t *testing.T, db kit.Database) *fetcher {
	t.Helper()
	f := idleFetcher(t, db)
	deliver(t, f, "crashed")
	crashDue(t, f)
	deliver(t, f, "fresh")
	return f
}

// hasFetchedFresh checks that f has fetched only the message "fresh".
func hasFetchedFresh(t *testing.T, f *fetcher) {
	t.Helper()
	if f.queue.len() != 1 {
		t.Fatal("the subscription waits for the crashed message")
	}
	c, _ := f.queue.next()
	if c.Message.UUID != "fresh" {
		t.Errorf("%q was fetched", c.Message.UUID)
	}
	f.remove(c.Claim)
}

// If a handler never returns, a crashed message cannot run alone. The subscription of the
// crashed message must still continue, like all other subscriptions.
func TestSubscriptionContinuesWhenCrashedMessageCannotRunAlone(t *testing.T) {
	t.Parallel()
	kit.EachDatabase(t, func(t *testing.T, db kit.Database) {
		f := fetcherAfterCrash(t, db)

		if !f.gate.enter(1, nil) { // a message of another subscription, whose handler never returns
			t.Fatal("another message is in flight")
		}
		defer f.gate.leave(1)
		defer f.requestIsolation(false)
		again := f.fetch(t.Context())
		if n := f.queue.len(); n != 0 || again { // fetching without a pause would prevent the removal of finished messages
			t.Fatalf("%d claimed while the crashed message waits to run alone, fetch again is %v", n, again)
		}
		f.gate.later()
		f.fetch(t.Context())
		hasFetchedFresh(t, f)
	})
}

// A crashed message may be locked by a suspended process, or its claim may fail in the
// database. Then the fetcher must pause before it tries to claim the message again, and
// other messages must not wait.
func TestOthersDoNotWaitForUnclaimableCrashedMessage(t *testing.T) {
	t.Parallel()
	for name, inTheWay := range map[string]string{
		"locked": `UPDATE once_parked SET error = 'locked' WHERE message_id = 'crashed'`,
		"refused": `CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'refused'; END $$;
			CREATE TRIGGER refuse BEFORE UPDATE ON once_parked FOR EACH ROW WHEN (OLD.crashes > 0) EXECUTE FUNCTION refuse();
			COMMIT`,
	} {
		t.Run(name, func(t *testing.T) {
			f := fetcherAfterCrash(t, kit.Postgres(t))
			conn, err := f.store.DB().Conn(t.Context())
			kit.OK(t, err)
			defer conn.Close()
			kit.Exec(t, conn, `BEGIN; `+inTheWay)
			defer func() { _, _ = conn.ExecContext(context.WithoutCancel(t.Context()), `ROLLBACK`) }()

			f.fetch(t.Context())
			if len(f.wake) > 0 {
				t.Error("the fetcher looks again at once")
			}
			if !f.gate.enter(1, nil) {
				t.Fatal("another subscription waits for the crashed message")
			}
			f.gate.leave(1)
			f.missedCrash = f.missedCrash.Add(time.Hour) // makes sure that the time has not passed yet, even on a slow machine
			f.fetch(t.Context())
			hasFetchedFresh(t, f)
		})
	}
}

// A crashed message waits until no other message runs, and all other messages wait while
// it runs.
func TestIsolationGateAdmitsACrashedMessageAlone(t *testing.T) {
	t.Parallel()
	g, wake := &isolationGate{}, make(chan struct{}, 1)
	woken := func() bool {
		select {
		case <-wake:
			return true
		default:
			return false
		}
	}
	if !g.enter(2, nil) || g.enterAlone() {
		t.Error("a crashed message runs together with others")
	}
	g.request(wake)
	g.leave(1)
	if g.leave(0); woken() {
		t.Error("the subscription is woken while a message is in flight")
	}
	if g.leave(1); !woken() {
		t.Error("the subscription is not woken")
	}
	if g.leave(0); woken() {
		t.Error("the subscription is woken although no message has left")
	}
	if !g.enterAlone() || g.enterAlone() {
		t.Error("not exactly one crashed message runs")
	}
	g.withdraw(wake)
	if g.enter(1, nil) {
		t.Error("another message runs together with the crashed one")
	}
	if g.leave(1); woken() || !g.enter(1, nil) {
		t.Error("others wait after the crashed message, or its subscription is woken")
	}
}

// The isolation time starts with the first request, not with the latest request.
func TestIsolationTimeBeginsWithTheFirstRequest(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := &isolationGate{}
		g.enter(1, nil)
		g.request(make(chan struct{}))
		time.Sleep(isolationTime - time.Second) //nolint:forbidigo // on the clock of synctest
		g.request(make(chan struct{}))
		if g.enter(1, nil) {
			t.Error("others do not wait")
		}
		time.Sleep(time.Second) //nolint:forbidigo // on the clock of synctest
		if !g.enter(1, nil) {
			t.Error("others wait longer than isolationTime")
		}
	})
}

// A slow handler runs for the whole isolation time. A crashed message must not wait until
// the process has no other messages: isolation must be requested again.
func TestIsolationIsRequestedAgainAfterTimeout(t *testing.T) {
	g := &isolationGate{}
	g.enter(1, nil)
	g.request(nil)
	if g.enter(1, nil) {
		t.Fatal("the request for isolation has no effect")
	}
	g.later()
	if !g.enter(1, nil) {
		t.Fatal("others wait longer than isolationTime")
	}
	g.leave(1) // the slow handler returns
	for range 20 {
		if g.later(); !g.enter(1, nil) {
			return
		}
		g.leave(1)
	}
	t.Error("the request for isolation has no effect any more")
}

func TestIsolationEndsIfCrashedMessageNeverReturns(t *testing.T) {
	g := &isolationGate{}
	if !g.enterAlone() {
		t.Fatal("the crashed message does not run")
	}
	if g.enter(1, nil) {
		t.Fatal("another message runs at the same time")
	}
	g.later()
	if !g.enter(1, nil) {
		t.Fatal("others wait longer than isolationTime")
	}
	g.leave(1) // the crashed message returns
	if !g.enter(1, nil) {
		t.Error("others still wait after the crashed message has returned")
	}
}

// Otherwise the messages that waited for crashed messages would also wait for the next poll.
func TestSubscriptionsAreWokenWhenIsolationEnds(t *testing.T) {
	g := &isolationGate{}
	newWake := func() chan struct{} { return make(chan struct{}, 1) }
	first, second, other := newWake(), newWake(), newWake()
	woken := func(step string, want ...chan struct{}) {
		t.Helper()
		for name, wake := range map[string]chan struct{}{"first": first, "second": second, "other": other} {
			if got := len(wake) > 0; got != slices.Contains(want, wake) {
				t.Errorf("%s: %s is woken: %v", step, name, got)
			}
			select {
			case <-wake:
			default:
			}
		}
	}
	g.enter(1, other)
	g.request(first)
	g.request(second)
	if g.enter(1, other) {
		t.Fatal("another message is in flight")
	}
	g.leave(1)
	woken("no message is in flight", first, second)
	g.enterAlone()
	g.withdraw(first)
	g.withdraw(second) // its crashed message is gone
	woken("the crashed message is in flight")
	g.request(second)
	g.leave(1)
	woken("the next crashed message waits", second)
	g.withdraw(second)
	woken("no crashed message waits", other)
	if !g.enter(1, other) {
		t.Error("the others still wait")
	}
}
