package parked_test

import (
	"context"
	"database/sql"
	"errors"
	"maps"
	"reflect"
	"testing"
	"time"

	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/durable"
	"github.com/watermill-once/once/embedded"
	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/operate/parked"
	"github.com/watermill-once/once/rabbit"
	"github.com/watermill-once/once/retry"
)

// Each subscription through retry is an instance until it ends: direct subscriptions to
// RabbitMQ, durable and embedded subscriptions, and several subscriptions of one
// consumer.
func TestSubscriptionsAreInstances(t *testing.T) {
	kit.Long(t)
	b := newBench(t, kit.Postgres(t))
	fromRabbit := func() message.Subscriber {
		config := wamqp.NewDurableQueueConfig(kit.Rabbit(t).URL)
		config.Marshaler = rabbit.Marshaler{}
		sub, err := rabbit.NewSubscriber(config, rabbit.SubscriberConfig{Logger: kit.Logger(t)})
		kit.OK(t, err)
		return sub
	}
	logger := kit.Logger(t)
	transport, err := embedded.New(b.DB, embedded.Config{Logger: logger})
	kit.OK(t, err)
	storage, err := durable.New(b.DB, durable.Config{Logger: logger})
	kit.OK(t, err)

	subscribe := func(name string, sub message.Subscriber) (end func()) {
		db, err := sql.Open("postgres", b.DSN) // as another process would
		kit.OK(t, err)
		retries, err := retry.New(db, retry.Config{Logger: logger})
		kit.OK(t, err)
		wrapped := retries.Subscriber(name, sub)
		kit.OK(t, kit.Err(wrapped.Subscribe(context.WithoutCancel(t.Context()), topic)))
		return func() {
			kit.OK(t, wrapped.Close())
			kit.OK(t, db.Close())
		}
	}
	running := func() map[string]int {
		n := map[string]int{}
		for _, c := range b.consumers() {
			if !c.Registered {
				t.Fatal("c.Registered is false")
			}
			for _, i := range c.Instances {
				if !i.Running {
					t.Fatal("i.Running is false")
				}
				n[c.Name]++
			}
		}
		return n
	}
	ends := []func(){
		subscribe("direct", fromRabbit()), subscribe("direct", fromRabbit()),
		subscribe("durable", storage.Subscriber(fromRabbit())), subscribe("embedded", transport.Subscriber()),
	}
	all := map[string]int{"direct": 2, "durable": 1, "embedded": 1}
	kit.Eventually(t, time.Minute, "they are registered", func() bool { return len(running()) == 3 && running()["direct"] == 2 })
	if got := running(); !reflect.DeepEqual(got, all) {
		t.Fatalf("running is %v, want %v", got, all)
	}
	ends[0]()
	if got, want := running(), map[string]int{"direct": 1, "durable": 1, "embedded": 1}; !maps.Equal(got, want) {
		t.Fatalf("running is %v, want %v", got, want)
	}
	for _, end := range ends[1:] {
		end()
	}
	if got := running(); len(got) != 0 {
		t.Fatalf("running is %v, want none", got)
	}
	if got := b.consumers(); len(got) != 3 {
		t.Fatalf("%d consumers, want 3: %+v", len(got), got)
	}
	if err := b.messages.RemoveConsumer(t.Context(), ann, "direct", topic, parked.RemoveOptions{}); !errors.Is(err, parked.ErrRunning) {
		t.Fatalf("RemoveConsumer: got %v, want ErrRunning", err)
	}
}
