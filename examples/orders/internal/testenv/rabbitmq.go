package testenv

import (
	"errors"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"
)

// Broker is a broker that other tests use at the same time.
type Broker struct {
	// URL is the AMQP URL of the broker.
	URL string

	// Namespace is the prefix of the names of the test's exchanges and queues.
	Namespace string
}

// RabbitMQ returns the broker that AMQP_URL names.
func RabbitMQ(t testing.TB) Broker {
	t.Helper()
	return Broker{URL: variable(t, "AMQP_URL"), Namespace: uniqueName()}
}

// Channel returns a channel that is closed after the test.
func (b Broker) Channel(t testing.TB) *amqp.Channel {
	t.Helper()
	connection, err := amqp.Dial(b.URL)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = connection.Close() })
	channel, err := connection.Channel()
	if err != nil {
		t.Fatal(err)
	}
	return channel
}

// DeleteAfter deletes an exchange and a queue after the test.
func (b Broker) DeleteAfter(t testing.TB, exchange, queue string) {
	t.Helper()
	t.Cleanup(func() {
		connection, err := amqp.Dial(b.URL)
		if err != nil {
			t.Error(err)
			return
		}
		defer connection.Close()
		channel, err := connection.Channel()
		if err == nil {
			_, queueErr := channel.QueueDelete(queue, false, false, false)
			err = errors.Join(queueErr, channel.ExchangeDelete(exchange, false, false))
		}
		if err != nil {
			t.Error(err)
		}
	})
}
