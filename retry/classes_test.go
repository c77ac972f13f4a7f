package retry_test

import (
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/internal/parked"
	"github.com/watermill-once/once/internal/testkit"
	"github.com/watermill-once/once/retry"
)

var errGateway = errors.New("the card gateway is unreachable")

func classes(c *retry.Config) {
	c.Classes = []retry.Class{
		{
			Match:  func(err error) bool { return errors.Is(err, errGateway) },
			Policy: retry.Policy{Immediate: -1, Delayed: 3, Base: time.Hour, Jitter: -1},
		},
		{Match: func(error) bool { return false }},
	}
}

func TestErrorOfClassUsesPolicyOfClass(t *testing.T) {
	t.Parallel()
	testkit.EachDatabase(t, func(t *testing.T, db testkit.Database) {
		b := newBench(t, db, classes)
		var calls atomic.Int32
		b.run(func(msg *message.Message) error {
			calls.Add(1)
			if msg.UUID == "gateway" {
				return fmt.Errorf("charge: %w", errGateway)
			}
			return errHandler
		})
		b.transport.deliver(t, message.NewMessage("gateway", nil))
		waiting := b.entries(parked.Waiting)
		if len(waiting) != 1 || calls.Load() != 1 {
			t.Fatalf("%d calls, rows %+v", calls.Load(), waiting)
		}
		if in := waiting[0].DueAt.Sub(waiting[0].LastFailedAt); in != time.Hour {
			t.Errorf("due in %v, want an hour", in)
		}
		b.transport.deliver(t, message.NewMessage("other", nil))
		b.eventually("it is in quarantine", func() bool { return len(b.entries(parked.Quarantined)) == 1 })
		if n := calls.Load(); n != 5 {
			t.Errorf("%d calls, want 5", n)
		}
	})
}

// The rounds of a message must be counted together for the errors of all classes.
func TestPolicyOfLatestErrorCountsAllRounds(t *testing.T) {
	t.Parallel()
	testkit.EachDatabase(t, func(t *testing.T, db testkit.Database) {
		b := newBench(t, db, func(c *retry.Config) {
			classes(c)
			c.Classes[0].Policy.Base, c.Classes[0].Policy.Max = time.Millisecond, time.Millisecond
		})
		var calls atomic.Int32
		b.run(func(*message.Message) error {
			if calls.Add(1) <= 2 { // two rounds for errors of the class, which is more than the other Policy allows
				return errGateway
			}
			return errHandler
		})
		b.transport.deliver(t, message.NewMessage("m1", nil))
		b.eventually("it is in quarantine", func() bool { return len(b.entries(parked.Quarantined)) == 1 })
		if e := b.entries(parked.Quarantined)[0]; e.Attempts != 4 || calls.Load() != 4 {
			t.Errorf("%d calls, entry %+v", calls.Load(), e)
		}
	})
}
