package retry_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/internal/testkit"
	"github.com/watermill-once/once/retry"
)

// unreliable is a broker whose first publish fails.
type unreliable struct{ calls, published atomic.Int32 }

var errAway = errors.New("the broker is unreachable")

func (u *unreliable) Publish(_ string, msgs ...*message.Message) error {
	if u.calls.Add(1) == 1 {
		return errAway
	}
	u.published.Add(int32(len(msgs)))
	return nil
}

func (u *unreliable) Close() error { return nil }

// Without dedup's outbox, the router publishes the messages that a handler returns,
// after the handler has returned. If this fails, the parked message must be tried
// again, like a message of the transport.
func TestRowStaysUntilProducedMessagesArePublished(t *testing.T) {
	t.Parallel()
	testkit.EachDatabase(t, func(t *testing.T, db testkit.Database) {
		b := newBench(t, db, func(c *retry.Config) {
			c.Policy = retry.Policy{Immediate: -1, Delayed: 2, Base: 10 * time.Millisecond, Factor: 1e6, Jitter: -1} // the second delay is an hour
		})
		b.put("m1")
		router, err := message.NewRouter(message.RouterConfig{CloseTimeout: time.Minute}, watermill.NopLogger{})
		if err != nil {
			t.Fatal(err)
		}
		router.AddMiddleware(b.retries.Middleware)
		broker := &unreliable{}
		router.AddHandler("handler-1", topic, b.retries.Subscriber(consumer, b.transport), "payments.made", broker,
			func(*message.Message) ([]*message.Message, error) {
				return []*message.Message{message.NewMessage(watermill.NewUUID(), nil)}, nil
			})
		stopped := make(chan error, 1)
		go func() { stopped <- router.Run(context.WithoutCancel(t.Context())) }()
		<-router.Running()
		b.eventually("the row is gone", func() bool { return len(b.entries("")) == 0 })
		if n := broker.published.Load(); n != 1 {
			t.Errorf("%d produced messages were published, want 1", n)
		}
		if err := errors.Join(router.Close(), <-stopped); err != nil {
			t.Fatal(err)
		}
	})
}
