package retry_test

import (
	"errors"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/dedup"
	"github.com/watermill-once/once/internal/testkit"
	"github.com/watermill-once/once/poison"
	"github.com/watermill-once/once/retry"
)

// Retry and poison search the inbox under the consumer name of Subscriber. If dedup used
// another name, an applied message could be given up on after a crash, and a late copy
// of a discarded message would be handled. So another name must be refused.
func TestTrap72InboxWithOtherConsumerNameIsRefused(t *testing.T) {
	t.Parallel()
	testkit.EachDatabase(t, func(t *testing.T, db testkit.Database) {
		for name, want := range map[string]struct{ acked, refused bool }{
			consumer:  {acked: true},
			"billing": {refused: true},
		} {
			b := newBench(t, db, func(c *retry.Config) { c.UnackedWait = time.Millisecond })
			inbox, err := dedup.New(db.DB, dedup.Config{Schema: b.config, Consumer: name})
			if err != nil {
				t.Fatal(err)
			}
			quarantine, err := poison.New(db.DB, poison.Config{Schema: b.config})
			if err != nil {
				t.Fatal(err)
			}
			var handed error
			look := func(h message.HandlerFunc) message.HandlerFunc {
				return func(msg *message.Message) ([]*message.Message, error) {
					_, handed = h(msg)
					return nil, handed
				}
			}
			ran := false
			b.runWith(func(*message.Message) error {
				ran = true
				return nil
			}, look, quarantine.Middleware, b.retries.Middleware, inbox.Middleware)
			acked := b.transport.deliver(t, message.NewMessage("m1", nil))
			if acked != want.acked || ran != want.acked || errors.Is(handed, dedup.ErrOtherConsumer) != want.refused {
				t.Errorf("dedup consumer %s: handler ran %t, acked %t, error %v", name, ran, acked, handed)
			}
			if n := len(b.entries("")); n != 0 {
				t.Errorf("dedup consumer %s: there are %d rows", name, n)
			}
			if err := b.router.Close(); err != nil {
				t.Fatal(err)
			}
		}
	})
}
