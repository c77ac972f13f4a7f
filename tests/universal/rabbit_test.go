package universal

import (
	"errors"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/internal/testkit"
	"github.com/watermill-once/once/rabbit"
	"github.com/watermill-once/once/schema"
)

// fanout declares an exchange for each topic, and a queue for each of its
// groups.
func fanout(uri, group string) amqp.Config {
	return amqp.NewDurablePubSubConfig(uri, amqp.GenerateQueueNameTopicNameWithSuffix(group))
}

// ours returns fanout with the marshaler of package rabbit.
func ours(uri, group string) amqp.Config {
	config := fanout(uri, group)
	config.Marshaler = rabbit.Marshaler{}
	return config
}

// lenient accepts that messages were nacked: some tests of the suite close a
// subscriber before they ack its messages.
type lenient struct{ *rabbit.Subscriber }

func (l lenient) Close() error {
	if err := l.Subscriber.Close(); !errors.Is(err, rabbit.ErrGivenBack) {
		return err
	}
	return nil
}

// The suite passes with outbox, forwarder and RabbitMQ, with rabbit's publisher and subscriber.
func TestRabbit(t *testing.T) {
	broker, s := onRabbit(t)
	run(t, func(t *testing.T, group string, ordered bool) (message.Publisher, message.Subscriber) {
		t.Helper()
		subscribing := rabbit.SubscriberConfig{NackMin: 10 * time.Millisecond, CloseTimeout: time.Second}
		if ordered {
			subscribing.InFlight = 1
		}
		subscriber, err := rabbit.NewSubscriber(ours(broker.URL, group), subscribing)
		if err != nil {
			t.Fatal(err)
		}
		return publisher{s, ordered}, lenient{subscriber}
	})
}

// The suite passes with the publisher and the subscriber of watermill-amqp, too. This subscriber
// has only one message in flight, so it keeps the order in which the broker delivers messages.
func TestStockRabbit(t *testing.T) {
	testkit.Long(t) // in make test, the suite runs with rabbit, and tests/dropin uses the stock publisher and subscriber
	broker := testkit.Rabbit(t)
	config := fanout(broker.URL, "")
	config.Publish.ConfirmDelivery = true // otherwise messages could be lost
	transport, err := amqp.NewPublisher(config, watermill.NopLogger{})
	if err != nil {
		t.Fatal(err)
	}
	s := onPostgres(t, transport)
	run(t, func(t *testing.T, group string, ordered bool) (message.Publisher, message.Subscriber) {
		t.Helper()
		subscriber, err := amqp.NewSubscriber(fanout(broker.URL, group), watermill.NopLogger{})
		if err != nil {
			t.Fatal(err)
		}
		return publisher{s, ordered}, subscriber
	})
}

// onPostgres returns a service whose forwarder publishes to transport. The
// transport is closed after the forwarder.
func onPostgres(t *testing.T, transport message.Publisher) *service {
	t.Helper()
	db := testkit.Postgres(t)
	if err := schema.Up(t.Context(), db.DB, schema.Config{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := transport.Close(); err != nil {
			t.Error(err)
		}
	})
	return newService(t, db.DB, db.DB, transport, schema.Config{})
}

// onRabbit is like onPostgres, with the publisher of package rabbit.
func onRabbit(t *testing.T) (testkit.Broker, *service) {
	t.Helper()
	broker := testkit.Rabbit(t)
	transport, err := rabbit.NewPublisher(ours(broker.URL, ""), rabbit.PublisherConfig{})
	if err != nil {
		t.Fatal(err)
	}
	return broker, onPostgres(t, transport)
}
