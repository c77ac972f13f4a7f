package retry_test

import (
	"errors"
	"testing"
	"time"

	"github.com/watermill-once/once/internal/parked"
	"github.com/watermill-once/once/internal/testkit"
	"github.com/watermill-once/once/retry"
)

// Somebody who does not answer does not keep a subscriber from being closed,
// and the message is not lost, nor charged.
func TestCloseWaitsForAnswersAndNotForEver(t *testing.T) {
	testkit.EachDatabase(t, func(t *testing.T, db testkit.Database) {
		b := newBench(t, db, func(c *retry.Config) {
			c.CloseTimeout, c.Lease, c.Concurrency = 50*time.Millisecond, time.Minute, 2
		})
		b.put("taken", "refused")
		sub := b.retries.Subscriber(consumer, b.transport)
		messages, err := sub.Subscribe(t.Context(), topic)
		if err != nil {
			t.Fatal(err)
		}
		taken := <-messages
		b.eventually("the other waits to be taken", func() bool { return b.count(`once_parked WHERE token IS NOT NULL`) == 2 })

		if err := sub.Close(); !errors.Is(err, retry.ErrGivenBack) {
			t.Errorf("closed with %v", err)
		}
		if taken.Context().Err() == nil {
			t.Error("its context has not ended")
		}
		taken.Ack() // nobody listens any more
		for _, entry := range b.entries(parked.Waiting) {
			if wait := time.Until(entry.DueAt); entry.Attempts != 0 || entry.Crashes != 0 || wait < 30*time.Second {
				t.Errorf("%+v is due in %v", entry, wait)
			}
		}
		if n := b.count(`once_parked WHERE token IS NULL`); n != 2 {
			t.Errorf("%d rows were given back, not 2", n)
		}
	})
}
