package dedup_test

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/dedup"
	"github.com/watermill-once/once/internal/chain"
	"github.com/watermill-once/once/internal/parkedrows"
	"github.com/watermill-once/once/internal/test/kit"
)

func withKey(key string) func(*dedup.Config) {
	return func(c *dedup.Config) {
		c.Key = func(*message.Message) string { return key }
	}
}

// If the same request arrives with another id, it must be skipped because of its key,
// and the inbox must remember only the first id.
func TestKeyIsHandledOnceUnderAnyID(t *testing.T) {
	t.Parallel()
	kit.EachDatabase(t, func(t *testing.T, db kit.Database) {
		b := newBench(t, db, withKey("order-17"))
		for _, id := range []string{"m1", "m2", "m2", ""} {
			if _, err := b.inbox.Middleware(apply)(message.NewMessage(id, []byte("body"))); err != nil {
				t.Fatalf("%q: %v", id, err)
			}
		}
		b.expect(1, 2, 0) // the id and the key of the first message
	})
}

func TestMessagesWithoutIDsAreDistinguishedByTheirKeys(t *testing.T) {
	t.Parallel()
	kit.EachDatabase(t, func(t *testing.T, db kit.Database) {
		b := newBench(t, db, func(c *dedup.Config) {
			c.Key = func(msg *message.Message) string { return string(msg.Payload) }
		})
		for _, body := range []string{"one", "two", "one"} {
			kit.OK(t, kit.Err(b.inbox.Middleware(apply)(message.NewMessage("", []byte(body)))))
		}
		b.expect(2, 2, 0)
	})
}

// Trap 40. Another message with a used key must not be skipped as a duplicate.
func TestSameKeyWithOtherContentIsACollision(t *testing.T) {
	t.Parallel()
	kit.EachDatabase(t, func(t *testing.T, db kit.Database) {
		b := newBench(t, db, withKey("order-17"))
		kit.OK(t, kit.Err(b.inbox.Middleware(apply)(message.NewMessage("m1", []byte("one")))))
		_, err := b.inbox.Middleware(apply)(message.NewMessage("m2", []byte("two")))
		kindOf(t, err, chain.Permanent)
		if !errors.Is(err, dedup.ErrCollision) {
			t.Fatalf("got %v, want ErrCollision", err)
		}
		b.expect(1, 2, 0)
	})
}

// If Config.Content is set, only the part that it returns must be compared.
func TestContentReplacesThePayloadInComparisons(t *testing.T) {
	t.Parallel()
	kit.EachDatabase(t, func(t *testing.T, db kit.Database) {
		b := newBench(t, db, func(c *dedup.Config) {
			withKey("order-17")(c)
			c.Content = func(msg *message.Message) []byte {
				amount, _, _ := strings.Cut(string(msg.Payload), " at ")
				return []byte(amount)
			}
		})
		handle := b.inbox.Middleware(apply)
		for id, body := range map[string]string{"m1": "100 at noon", "m2": "100 at midnight"} {
			kit.OK(t, kit.Err(handle(message.NewMessage(id, []byte(body)))))
		}
		if _, err := handle(message.NewMessage("m3", []byte("200 at noon"))); !errors.Is(err, dedup.ErrCollision) {
			t.Fatalf("got %v, want ErrCollision", err)
		}
		b.expect(1, 2, 0)
	})
}

// Trap 39. If the inbox cannot store a key, the failure must be permanent, as for ids.
func TestUnusableKeyIsAPermanentFailure(t *testing.T) {
	t.Parallel()
	kit.EachDatabase(t, func(t *testing.T, db kit.Database) {
		for name, key := range map[string]string{
			"empty": "", "too long": strings.Repeat("x", 256), "NUL": "a\x00b", "invalid UTF-8": "a\xff",
		} {
			t.Run(name, func(t *testing.T) {
				b := newBench(t, kit.SQLite(t), withKey(key))
				_, err := b.inbox.Middleware(apply)(message.NewMessage("m1", nil))
				kindOf(t, err, chain.Permanent)
				if !errors.Is(err, dedup.ErrInvalidID) || !strings.Contains(err.Error(), "Key") {
					t.Errorf("%v", err)
				}
				b.expect(0, 0, 0)
			})
		}
		b := newBench(t, db, withKey("a"))
		_, err := b.inbox.Middleware(apply)(message.NewMessage("key:a", nil))
		kindOf(t, err, chain.Permanent) // such an id would be taken for a key
	})
}

// The handler of an idempotent consumer must get its transaction and the outbox, and
// must run for every delivery.
func TestIdempotentConsumersRunForDuplicates(t *testing.T) {
	t.Parallel()
	kit.EachDatabase(t, func(t *testing.T, db kit.Database) {
		b := newBench(t, db, func(c *dedup.Config) { c.Idempotent = []string{"other", consumer} })
		for range 2 {
			kit.OK(t, kit.Err(b.inbox.Middleware(produce("e1", nil))(message.NewMessage("", nil))))
		}
		b.expect(2, 0, 2)
		if _, err := b.inbox.Middleware(produce("e1", errHandler))(message.NewMessage("m1", nil)); !errors.Is(err, errHandler) {
			t.Fatal(err)
		}
		b.expect(2, 0, 2)
	})
}

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
	} {
		t.Run(what, func(t *testing.T) {
			var logs kit.Logs
			b := newBench(t, kit.SQLite(t), func(config *dedup.Config) {
				config.Logger = &logs
				if c.change != nil {
					c.change(config)
				}
			})
			router, err := message.NewRouter(message.RouterConfig{CloseTimeout: time.Minute}, watermill.NopLogger{})
			kit.OK(t, err)
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
			ended := kit.Go(func() error { return router.Run(context.WithoutCancel(t.Context())) })
			<-router.Running()
			delivered := func(id string) *message.Message {
				msg := message.NewMessage(id, nil)
				if c.retried {
					d := &parkedrows.Delivery{Consumer: consumer, Topic: "orders.placed", Subscribed: true}
					msg.SetContext(parkedrows.WithDelivery(t.Context(), d))
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
					kindOf(t, err, chain.Undecided)
				}
			}
			kit.Check(t, router.Close())
			kit.Check(t, <-ended)
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
