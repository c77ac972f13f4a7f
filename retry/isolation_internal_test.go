package retry

import (
	"context"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/internal/parked"
	"github.com/watermill-once/once/internal/testkit"
)

// later moves the gate beyond isolationTime.
func (g *isolationGate) later() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.since = g.since.Add(-isolationTime)
}

func deliver(t *testing.T, f *fetcher, id string) {
	t.Helper()
	if err := f.store.Deliver(t.Context(), f.topic, []string{f.consumer}, message.NewMessage(id, nil)); err != nil {
		t.Fatal(err)
	}
}

// suspected has a process end that has claimed what is due.
func suspected(t *testing.T, f *fetcher) {
	t.Helper()
	sel := parked.Select{Consumer: f.consumer, Topic: f.topic, Owner: "killed", Limit: 1, Lease: time.Millisecond}
	if claimed, err := f.store.Claim(t.Context(), sel); err != nil || len(claimed) != 1 {
		t.Fatalf("%d claimed, %v", len(claimed), err)
	}
	testkit.Eventually(t, 20*time.Second, "it is suspected", func() bool {
		due, err := f.store.Due(t.Context(), sel)
		return err == nil && due.Suspect
	})
}

// A handler that never returns prevents a crashed message from running alone.
// The subscription of the crashed message must continue, like all others.
func TestSubscriptionContinuesWhenCrashedMessageCannotRunAlone(t *testing.T) {
	testkit.EachDatabase(t, func(t *testing.T, db testkit.Database) {
		f := idleFetcher(t, db)
		deliver(t, f, "suspect")
		suspected(t, f)
		deliver(t, f, "fresh")

		if !processGate.enter(1) { // by another subscription, whose handler does not return
			t.Fatal("there is somebody else")
		}
		defer processGate.leave(1)
		defer f.requestIsolation(false)
		f.fetch(t.Context())
		if n := f.queue.len(); n != 0 {
			t.Fatalf("%d claimed while the suspect waits for room", n)
		}
		processGate.later()
		f.fetch(t.Context())
		if f.queue.len() != 1 {
			t.Fatal("nothing is fetched any more")
		}
		c, _ := f.queue.next()
		if c.Message.UUID != "fresh" {
			t.Errorf("%q was fetched beside another message", c.Message.UUID)
		}
		f.remove(c.Claim)
	})
}

// A crashed message may be locked by a frozen process, or its claim may fail in
// the database. The fetcher then does not look for it in a loop, and other
// messages do not wait.
func TestOthersDoNotWaitForUnclaimableCrashedMessage(t *testing.T) {
	for name, inTheWay := range map[string]string{
		"locked": `UPDATE once_parked SET error = 'locked' WHERE message_id = 'suspect'`,
		"refused": `CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'refused'; END $$;
			CREATE TRIGGER refuse BEFORE UPDATE ON once_parked FOR EACH ROW WHEN (OLD.crashes > 0) EXECUTE FUNCTION refuse();
			COMMIT`,
	} {
		t.Run(name, func(t *testing.T) {
			f := idleFetcher(t, testkit.Postgres(t))
			deliver(t, f, "suspect")
			suspected(t, f)
			deliver(t, f, "fresh")
			conn, err := f.store.DB().Conn(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			if _, err := conn.ExecContext(t.Context(), `BEGIN; `+inTheWay); err != nil {
				t.Fatal(err)
			}
			defer func() { _, _ = conn.ExecContext(context.WithoutCancel(t.Context()), `ROLLBACK`) }()

			f.fetch(t.Context())
			if len(f.wake) > 0 {
				t.Error("it is looked for again at once")
			}
			if !processGate.enter(1) {
				t.Fatal("another subscription waits for it")
			}
			processGate.leave(1)
			f.missedCrash = f.missedCrash.Add(time.Hour) // however slow this is
			f.fetch(t.Context())
			if f.queue.len() != 1 {
				t.Fatal("its own subscription waits for it")
			}
			c, _ := f.queue.next()
			if c.Message.UUID != "fresh" {
				t.Errorf("%q was fetched", c.Message.UUID)
			}
			f.remove(c.Claim)
		})
	}
}

// After a slow handler has used up the isolation time, a crashed message must
// not wait until the process happens to be idle.
func TestIsolationIsRequestedAgainAfterTimeout(t *testing.T) {
	g := &isolationGate{}
	g.enter(1)
	g.request(func() {})
	if g.enter(1) {
		t.Fatal("nobody makes room")
	}
	g.later()
	if !g.enter(1) {
		t.Fatal("all wait for longer than they are patient")
	}
	g.leave(1) // what took long
	for range 20 {
		if g.later(); !g.enter(1) {
			return
		}
		g.leave(1)
	}
	t.Error("nobody makes room any more")
}

func TestIsolationEndsIfCrashedMessageNeverReturns(t *testing.T) {
	g := &isolationGate{}
	if !g.enterAlone() {
		t.Fatal("it does not run")
	}
	if g.enter(1) {
		t.Fatal("another message runs beside it")
	}
	g.later()
	if !g.enter(1) {
		t.Fatal("nothing else runs any more")
	}
	g.leave(1) // the suspect, after all
	if !g.enter(1) {
		t.Error("they go on as if it were still there")
	}
}
