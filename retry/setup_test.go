package retry_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/internal/parkedrows"
	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/internal/test/rows"
	"github.com/watermill-once/once/poison"
	"github.com/watermill-once/once/retry"
	"github.com/watermill-once/once/schema"
)

func TestMain(m *testing.M) { kit.MainWithTables(m) }

const (
	consumer = "payments"
	topic    = "orders.placed"
)

const pollInterval = 20 * time.Millisecond

var errHandler = errors.New("handler failed")

// transport is a subscriber for messages that the test sends.
type transport struct {
	messages chan *message.Message
	closed   atomic.Bool
}

func newTransport() *transport { return &transport{messages: make(chan *message.Message)} }

// Subscribe ends the subscription when ctx ends, because a closing router either cancels
// ctx or closes the subscriber first.
func (s *transport) Subscribe(ctx context.Context, _ string) (<-chan *message.Message, error) {
	context.AfterFunc(ctx, func() { _ = s.Close() })
	return s.messages, nil
}

func (s *transport) Close() error {
	if s.closed.CompareAndSwap(false, true) {
		close(s.messages)
	}
	return nil
}

// deliver sends msg to the consumer and reports whether it was acked.
func (s *transport) deliver(t *testing.T, msg *message.Message) (acked bool) {
	t.Helper()
	s.messages <- msg
	select {
	case <-msg.Acked():
		return true
	case <-msg.Nacked():
		return false
	case <-time.After(time.Minute):
		t.Fatal("the message is neither acked nor nacked")
		return false
	}
}

// bench is a router with one handler and retries, and with its own tables.
type bench struct {
	*kit.Bench

	retries   *retry.Retries
	parked    *parkedrows.Store
	transport *transport
	router    *message.Router

	subscriber message.Subscriber // the subscriber of the router
}

// quick is a policy for tests: two rounds of two tries each.
var quick = retry.Policy{Immediate: 1, Delayed: 1, Base: 10 * time.Millisecond, Jitter: -1}

// eachDatabase runs test with each kind of database.
func eachDatabase(t *testing.T, test func(t *testing.T, b *bench)) {
	t.Helper()
	kit.EachDatabase(t, func(t *testing.T, db kit.Database) { test(t, newBench(t, db, nil)) })
}

func newBench(t *testing.T, db kit.Database, change func(*retry.Config)) *bench {
	t.Helper()
	b := &bench{Bench: kit.NewBench(t, db, schema.Config{}), transport: newTransport()}
	config := retry.Config{
		Schema: b.Config, Policy: quick, PollInterval: pollInterval, Logger: kit.Logger(t),
		ShareConsumer: true, // several benches with one database are instances of one service
	}
	if change != nil {
		change(&config)
	}
	var err error
	b.retries, err = retry.New(db.DB, config)
	kit.OK(t, err)
	b.parked, err = parkedrows.NewStore(db.DB, b.Config)
	kit.OK(t, err)
	return b
}

// run starts a router with handler h and the middlewares of poison and retry.
func (b *bench) run(h message.NoPublishHandlerFunc) {
	b.Helper()
	quarantine, err := poison.New(b.DB, poison.Config{Schema: b.Config, Logger: kit.Logger(b.T)})
	kit.OK(b, err)
	b.runWith(h, quarantine.Middleware, b.retries.Middleware)
}

func (b *bench) runWith(h message.NoPublishHandlerFunc, middlewares ...message.HandlerMiddleware) {
	b.Helper()
	b.start(consumer, topic, h, middlewares...)
}

// runNamed is like run, but for another consumer and topic, and without poison.
func (b *bench) runNamed(consumer, topic string, h message.NoPublishHandlerFunc) {
	b.Helper()
	b.start(consumer, topic, h, b.retries.Middleware)
}

func (b *bench) start(consumer, topic string, h message.NoPublishHandlerFunc, middlewares ...message.HandlerMiddleware) {
	b.Helper()
	b.startWith(b.transport, consumer, topic, h, middlewares...)
}

func (b *bench) startWith(
	transport message.Subscriber, consumer, topic string, h message.NoPublishHandlerFunc, middlewares ...message.HandlerMiddleware,
) {
	b.Helper()
	router, err := message.NewRouter(message.RouterConfig{CloseTimeout: time.Minute}, watermill.NopLogger{})
	kit.OK(b, err)
	router.AddMiddleware(middlewares...)
	b.subscriber = b.retries.Subscriber(consumer, transport)
	router.AddConsumerHandler("handler-1", topic, b.subscriber, h)
	stopped := kit.Go(func() error { return router.Run(context.WithoutCancel(b.Context())) })
	select {
	case <-router.Running():
	case err := <-stopped:
		b.Fatalf("run: %v", err)
	}
	b.router = router
	b.Cleanup(func() {
		if err := router.Close(); err != nil {
			b.Errorf("close: %v", err)
		}
		if err := <-stopped; err != nil {
			b.Errorf("run: %v", err)
		}
	})
}

// entries returns the rows in the given state, or all rows if state is empty.
func (b *bench) entries(state string) []rows.Row {
	b.Helper()
	return rows.Parked(b, b.parked, state)
}

// allHandled waits until the table of parked messages is empty.
func (b *bench) allHandled() {
	b.Helper()
	b.Eventually("all are handled", func() bool { return len(b.entries("")) == 0 })
}
