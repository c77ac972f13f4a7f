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
	"github.com/watermill-once/once/internal/testkit"
)

// If two handlers have the same consumer name and topic, each would skip messages that
// the other has handled. So the messages of the second handler must be nacked.
func TestSecondHandlerWithAConsumerNameIsRefused(t *testing.T) {
	t.Parallel()
	for what, c := range map[string]struct {
		topic   string // topic of the second handler
		change  func(*dedup.Config)
		refused bool
	}{
		"one topic":    {topic: "orders.placed", refused: true},
		"a topic each": {topic: "orders.changed"},
		"idempotent":   {topic: "orders.placed", change: func(c *dedup.Config) { c.Idempotent = []string{consumer} }},
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
			for n := range 3 {
				id := strconv.Itoa(n)
				first <- message.NewMessage("first "+id, nil)
				if err := <-outcome; err != nil {
					t.Errorf("the first handler: %v", err)
				}
				second <- message.NewMessage("second "+id, nil)
				err := <-outcome
				const want = `dedup: two handlers have the same consumer name: handler "inventory": consumer "payments" is already used by ` +
					`handler "payments" on topic "orders.placed"; give each handler its own consumer name`
				if errors.Is(err, dedup.ErrConsumerInUse) != c.refused || c.refused && err.Error() != want {
					t.Errorf("the second handler: %v\nwant %s", err, want)
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
			if n := logs.Count("ERROR", "Two handlers have the same consumer name", `"payments"`, `"inventory"`, "topic=orders.placed"); n != told {
				t.Errorf("logged %d times, want %d: %q", n, told, logs.Lines())
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
