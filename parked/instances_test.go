package parked_test

import (
	"context"
	"database/sql"
	"testing"
	"time"

	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/watermill-once/once/durable"
	"github.com/watermill-once/once/embedded"
	"github.com/watermill-once/once/internal/testkit"
	"github.com/watermill-once/once/parked"
	"github.com/watermill-once/once/rabbit"
	"github.com/watermill-once/once/retry"
)

// Each subscription through retry is an instance until it ends: direct on RabbitMQ,
// durable and embedded, and several of one consumer.
func TestSubscriptionsAreInstances(t *testing.T) {
	b := newBench(t, testkit.Postgres(t))
	fromRabbit := func() message.Subscriber {
		config := wamqp.NewDurableQueueConfig(testkit.Rabbit(t).URL)
		config.Marshaler = rabbit.Marshaler{}
		sub, err := rabbit.NewSubscriber(config, rabbit.SubscriberConfig{Logger: testkit.Logger(t)})
		require.NoError(t, err)
		return sub
	}
	logger := testkit.Logger(t)
	transport, err := embedded.New(b.db, embedded.Config{Logger: logger})
	require.NoError(t, err)
	storage, err := durable.New(b.db, durable.Config{Logger: logger})
	require.NoError(t, err)

	subscribe := func(name string, sub message.Subscriber) (end func()) {
		db, err := sql.Open("postgres", b.dsn) // as another process would
		require.NoError(t, err)
		retries, err := retry.New(db, retry.Config{Logger: logger})
		require.NoError(t, err)
		wrapped := retries.Subscriber(name, sub)
		_, err = wrapped.Subscribe(context.WithoutCancel(t.Context()), topic)
		require.NoError(t, err)
		return func() {
			require.NoError(t, wrapped.Close())
			require.NoError(t, db.Close())
		}
	}
	running := func() map[string]int {
		n := map[string]int{}
		for _, c := range b.consumers() {
			require.True(t, c.Registered)
			for _, i := range c.Instances {
				require.True(t, i.Running)
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
	testkit.Eventually(t, time.Minute, "they are registered", func() bool { return len(running()) == 3 && running()["direct"] == 2 })
	require.Equal(t, all, running())
	ends[0]()
	require.Equal(t, map[string]int{"direct": 1, "durable": 1, "embedded": 1}, running())
	for _, end := range ends[1:] {
		end()
	}
	require.Empty(t, running())
	require.Len(t, b.consumers(), 3)
	require.ErrorIs(t, b.messages.RemoveConsumer(t.Context(), ann, "direct", topic, parked.RemoveOptions{}), parked.ErrRunning)
}
