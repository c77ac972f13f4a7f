package dedup_test

import (
	"context"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"

	"github.com/watermill-once/once/dedup"
	"github.com/watermill-once/once/internal/testkit"
)

// Of two handlers with one name and topic each skips what the other has done, as
// if it were a copy: that has to be told.
func TestTwoHandlersWithOneNameAreTold(t *testing.T) {
	for what, c := range map[string]struct {
		topic      string // the second handler's
		idempotent []string
		told       int
	}{
		"one topic":    {"orders.placed", nil, 1},
		"a topic each": {"orders.changed", nil, 0},
		"idempotent":   {"orders.placed", []string{consumer}, 0},
	} {
		t.Run(what, func(t *testing.T) {
			var logs testkit.Logs
			b := newBench(t, testkit.Postgres(t), func(config *dedup.Config) { config.Logger, config.Idempotent = &logs, c.idempotent })
			transport := gochannel.NewGoChannel(gochannel.Config{BlockPublishUntilSubscriberAck: true}, nil)
			router, err := message.NewRouter(message.RouterConfig{CloseTimeout: time.Minute}, watermill.NopLogger{})
			if err != nil {
				t.Fatal(err)
			}
			router.AddMiddleware(b.inbox.Middleware)
			handle := func(*message.Message) error { return nil }
			router.AddConsumerHandler("payments", "orders.placed", transport, handle)
			router.AddConsumerHandler("inventory", c.topic, transport, handle)
			ended := make(chan error, 1)
			go func() { ended <- router.Run(context.WithoutCancel(t.Context())) }()
			<-router.Running()
			for range 3 {
				for _, topic := range []string{"orders.placed", "orders.changed"} {
					if err := transport.Publish(topic, message.NewMessage(watermill.NewUUID(), nil)); err != nil {
						t.Error(err)
					}
				}
			}
			if err := router.Close(); err != nil {
				t.Error(err)
			}
			if err := <-ended; err != nil {
				t.Error(err)
			}
			if n := logs.Count("ERROR", "Two handlers have one consumer's name", `"payments"`, `"inventory"`, "topic=orders.placed"); n != c.told {
				t.Errorf("told %d times, not %d: %q", n, c.told, logs.Lines())
			}
		})
	}
}
