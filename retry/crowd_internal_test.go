package retry

import (
	"context"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/internal/parked"
	"github.com/watermill-once/once/internal/testkit"
)

// later is when patience is over.
func (c *crowd) later() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.since = c.since.Add(-patience)
}

func deliver(t *testing.T, f *feed, id string) {
	t.Helper()
	if err := f.store.Deliver(t.Context(), f.topic, []string{f.consumer}, message.NewMessage(id, nil)); err != nil {
		t.Fatal(err)
	}
}

// suspected has a process end that has claimed what is due.
func suspected(t *testing.T, f *feed) {
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

// A handler that does not return keeps a suspect from being alone. That must not
// stop the subscription which has the suspect, as it does not stop the others.
func TestASubscriptionGoesOnThoughItsSuspectCannotRun(t *testing.T) {
	testkit.EachDatabase(t, func(t *testing.T, db testkit.Database) {
		f := idleFeed(t, db)
		deliver(t, f, "suspect")
		suspected(t, f)
		deliver(t, f, "fresh")

		if !inProcess.join(1) { // by another subscription, whose handler does not return
			t.Fatal("there is somebody else")
		}
		defer inProcess.leave(1)
		defer f.ask(false)
		again := f.fetch(t.Context())
		if n := f.claimed.len(); n != 0 || again { // what makes room is not seen while it looks all the time
			t.Fatalf("%d claimed while the suspect waits for room, and again: %v", n, again)
		}
		inProcess.later()
		f.fetch(t.Context())
		if f.claimed.len() != 1 {
			t.Fatal("nothing is fetched any more")
		}
		c, _ := f.claimed.next()
		if c.Message.UUID != "fresh" {
			t.Errorf("%q was fetched beside another message", c.Message.UUID)
		}
		f.leave(c.Claim)
	})
}

// A suspect that is locked, as by a process that stands still, or that the
// database does not let be claimed, is not looked for all the time, and nobody
// waits for it.
func TestNobodyWaitsForASuspectThatCannotBeClaimed(t *testing.T) {
	for name, inTheWay := range map[string]string{
		"locked": `UPDATE once_parked SET error = 'locked' WHERE message_id = 'suspect'`,
		"refused": `CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'refused'; END $$;
			CREATE TRIGGER refuse BEFORE UPDATE ON once_parked FOR EACH ROW WHEN (OLD.crashes > 0) EXECUTE FUNCTION refuse();
			COMMIT`,
	} {
		t.Run(name, func(t *testing.T) {
			f := idleFeed(t, testkit.Postgres(t))
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
			if !inProcess.join(1) {
				t.Fatal("another subscription waits for it")
			}
			inProcess.leave(1)
			f.missed = f.missed.Add(time.Hour) // however slow this is
			f.fetch(t.Context())
			if f.claimed.len() != 1 {
				t.Fatal("its own subscription waits for it")
			}
			c, _ := f.claimed.next()
			if c.Message.UUID != "fresh" {
				t.Errorf("%q was fetched", c.Message.UUID)
			}
			f.leave(c.Claim)
		})
	}
}

// One that took too long once must not have a suspect wait until the process
// has nothing in hand by chance.
func TestASuspectIsMadeRoomForAgain(t *testing.T) {
	c := &crowd{}
	c.join(1)
	c.ask(func() {})
	if c.join(1) {
		t.Fatal("nobody makes room")
	}
	c.later()
	if !c.join(1) {
		t.Fatal("all wait for longer than they are patient")
	}
	c.leave(1) // what took long
	for range 20 {
		if c.later(); !c.join(1) {
			return
		}
		c.leave(1)
	}
	t.Error("nobody makes room any more")
}

// A suspect whose handler does not return does not stop the process for good
// either.
func TestASuspectIsNotAloneForEver(t *testing.T) {
	c := &crowd{}
	if !c.isolate() {
		t.Fatal("it does not run")
	}
	if c.join(1) {
		t.Fatal("another message runs beside it")
	}
	c.later()
	if !c.join(1) {
		t.Fatal("nothing else runs any more")
	}
	c.leave(1) // the suspect, after all
	if !c.join(1) {
		t.Error("they go on as if it were still there")
	}
}
