package dedup_test

import (
	"context"
	"errors"
	"strconv"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/dedup"
	"github.com/watermill-once/once/internal/disposition"
	"github.com/watermill-once/once/internal/parked"
	"github.com/watermill-once/once/internal/testkit"
)

const inUse = `two handlers have the same consumer name: handler "inventory": consumer "payments" is already used by ` +
	`handler "payments" on topic "orders.placed"; give each handler its own consumer name`

// If two handlers have the same consumer name and topic, each would skip messages that
// the other has handled. So the messages of the second handler must be nacked.
func TestSecondHandlerWithAConsumerNameIsRefused(t *testing.T) {
	t.Parallel()
	for what, c := range map[string]struct {
		topic   string // topic of the second handler
		change  func(*dedup.Config)
		retried bool // the messages come from retry's Subscriber, which compares the names itself
		refused bool
	}{
		"one topic":    {topic: "orders.placed", refused: true},
		"a topic each": {topic: "orders.changed"},
		"idempotent":   {topic: "orders.placed", change: func(c *dedup.Config) { c.Idempotent = []string{consumer} }},
		"with retry":   {topic: "orders.placed", retried: true},
		"on purpose":   {topic: "orders.placed", change: func(c *dedup.Config) { c.ShareConsumer = true }},
	} {
		t.Run(what, func(t *testing.T) {
			var logs testkit.Logs
			b := newBench(t, testkit.SQLite(t), func(config *dedup.Config) {
				config.Logger = &logs
				if c.change != nil {
					c.change(config)
				}
			})
			router, err := message.NewRouter(message.RouterConfig{CloseTimeout: time.Minute}, watermill.NopLogger{})
			if err != nil {
				t.Fatal(err)
			}
			outcome := make(chan error, 1)
			router.AddMiddleware(func(h message.HandlerFunc) message.HandlerFunc {
				return func(msg *message.Message) ([]*message.Message, error) {
					_, err := h(msg)
					outcome <- err
					return nil, nil // acked, so that the message is not delivered again
				}
			}, b.inbox.Middleware)
			handle := func(*message.Message) error { return nil }
			first, second := newHand(), newHand()
			router.AddConsumerHandler("payments", "orders.placed", first, handle)
			router.AddConsumerHandler("inventory", c.topic, second, handle)
			ended := make(chan error, 1)
			go func() { ended <- router.Run(context.WithoutCancel(t.Context())) }()
			<-router.Running()
			delivered := func(id string) *message.Message {
				msg := message.NewMessage(id, nil)
				if c.retried {
					d := &parked.Delivery{Consumer: consumer, Topic: "orders.placed", Subscribed: true}
					msg.SetContext(parked.WithDelivery(t.Context(), d))
				}
				return msg
			}
			for n := range 3 {
				id := strconv.Itoa(n)
				first <- delivered("first " + id)
				if err := <-outcome; err != nil {
					t.Errorf("the first handler: %v", err)
				}
				second <- delivered("second " + id)
				err := <-outcome
				if errors.Is(err, dedup.ErrConsumerInUse) != c.refused || c.refused && err.Error() != "dedup: "+inUse {
					t.Errorf("the second handler: %v\nwant dedup: %s", err, inUse)
				}
				if c.refused {
					kindOf(t, err, disposition.Undecided)
				}
			}
			if err := router.Close(); err != nil {
				t.Error(err)
			}
			if err := <-ended; err != nil {
				t.Error(err)
			}
			told := 0
			if c.refused {
				told = 1
			}
			const line = "ERROR Two handlers have the same consumer name, messages of the second are nacked"
			if logs.CountLine(line+" consumer=payments topic=orders.placed err="+inUse) != told || logs.Count(line) != told {
				t.Errorf("want %d lines, logged %q", told, logs.Lines())
			}
		})
	}
}

// hand is a subscriber whose messages are sent by the test.
type hand chan *message.Message

func newHand() hand { return make(chan *message.Message) }

// Subscribe delivers messages until ctx ends.
func (h hand) Subscribe(ctx context.Context, _ string) (<-chan *message.Message, error) {
	out := make(chan *message.Message)
	go func() {
		defer close(out)
		for {
			select {
			case msg := <-h:
				out <- msg
			case <-ctx.Done():
				return
			}
		}
	}()
	return out, nil
}

// Close does nothing, because the subscription ends with its context.
func (h hand) Close() error { return nil }
