package durable_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/dedup"
	"github.com/watermill-once/once/durable"
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

// bench is a durable consumer with all middlewares and its own tables.
type bench struct {
	*kit.Bench

	parked    *parkedrows.Store
	transport *kit.Subscriber
	router    *message.Router
	oneTry    time.Duration // timeout for one attempt to store a batch; 0 means the default
	keyOrder  retry.KeyOrder

	mu      sync.Mutex
	handled []string
}

// eachDatabase runs test with each kind of database.
func eachDatabase(t *testing.T, test func(t *testing.T, b *bench)) {
	t.Helper()
	kit.EachDatabase(t, func(t *testing.T, db kit.Database) { test(t, newBench(t, db)) })
}

func newBench(t *testing.T, db kit.Database) *bench {
	t.Helper()
	b := &bench{Bench: kit.NewBench(t, db, schema.Config{}), transport: kit.NewSubscriber()}
	var err error
	b.parked, err = parkedrows.NewStore(db.DB, b.Config)
	kit.OK(t, err)
	return b
}

// run starts a router with one handler, and records the ids of its messages.
func (b *bench) run(config durable.Config, handle message.NoPublishHandlerFunc) {
	b.Helper()
	config.Schema, config.Logger = b.Config, kit.Logger(b.T)
	storage, err := durable.New(b.DB, config)
	kit.OK(b, err)
	storage.SetOneTry(b.oneTry)
	quarantine, err1 := poison.New(b.DB, poison.Config{Schema: b.Config})
	retries, err2 := retry.New(b.DB, retry.Config{
		Schema: b.Config, Concurrency: 1, PollInterval: 20 * time.Millisecond, Logger: kit.Logger(b.T), KeyOrder: b.keyOrder,
	})
	once, err3 := dedup.New(b.DB, dedup.Config{Schema: b.Config})
	router, err4 := message.NewRouter(message.RouterConfig{CloseTimeout: time.Minute}, watermill.NopLogger{})
	kit.OK(b, errors.Join(err1, err2, err3, err4))
	router.AddMiddleware(quarantine.Middleware, retries.Middleware, once.Middleware)
	router.AddConsumerHandler("handler-1", topic, retries.Subscriber(consumer, storage.Subscriber(b.transport)),
		func(msg *message.Message) error {
			if err := handle(msg); err != nil {
				return err
			}
			b.mu.Lock()
			defer b.mu.Unlock()
			b.handled = append(b.handled, msg.UUID)
			return nil
		})
	stopped := kit.Go(func() error { return router.Run(context.WithoutCancel(b.Context())) })
	<-router.Running()
	b.router = router
	b.Cleanup(func() {
		kit.Check(b, errors.Join(router.Close(), <-stopped))
	})
}

func fine(*message.Message) error { return nil }

// send sends messages to the consumer without waiting for acks.
func (b *bench) send(msgs ...*message.Message) {
	b.Helper()
	for _, msg := range msgs {
		select {
		case b.transport.Messages <- msg:
		case <-time.After(time.Minute):
			b.Fatalf("message %q is not received", msg.UUID)
		}
	}
}

// acked waits until all messages were acked.
func (b *bench) acked(msgs ...*message.Message) {
	b.Helper()
	for _, msg := range msgs {
		select {
		case <-msg.Acked():
		case <-msg.Nacked():
			b.Fatalf("message %q is nacked", msg.UUID)
		case <-time.After(time.Minute):
			b.Fatalf("message %q is neither acked nor nacked", msg.UUID)
		}
	}
}

// unacked fails the test if a message was acked or nacked.
func (b *bench) unacked(msgs ...*message.Message) {
	b.Helper()
	for _, msg := range msgs {
		select {
		case <-msg.Acked():
			b.Fatalf("message %q is acked", msg.UUID)
		case <-msg.Nacked():
			b.Fatalf("message %q is nacked", msg.UUID)
		default:
		}
	}
}

// handles waits until the messages were handled and none is waiting. It checks that
// each was handled once.
func (b *bench) handles(ids ...string) {
	b.Helper()
	b.Eventually("all are handled", func() bool { return b.Count(`once_inbox`) >= len(ids) && len(b.entries(parkedrows.Waiting)) == 0 })
	b.mu.Lock()
	defer b.mu.Unlock()
	if got, want := slices.Sorted(slices.Values(b.handled)), slices.Sorted(slices.Values(ids)); !slices.Equal(got, want) {
		b.Errorf("handled %q, want %q", got, want)
	}
}

func (b *bench) entries(states ...string) []rows.Row {
	b.Helper()
	return rows.Parked(b, b.parked, states...)
}

func messages(ids ...string) []*message.Message {
	all := make([]*message.Message, len(ids))
	for i, id := range ids {
		all[i] = message.NewMessage(id, []byte("body of "+id))
	}
	return all
}
