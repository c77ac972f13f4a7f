package conformance

import (
	"context"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/watermill-once/once/internal/testkit"
)

// newQueue declares a new queue. It returns the name of the queue, and a channel to the
// broker.
func newQueue(t *testing.T, broker testkit.Broker) (string, *amqp.Channel) {
	t.Helper()
	conn, err := amqp.Dial(broker.URL)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	channel, err := conn.Channel()
	if err != nil {
		t.Fatal(err)
	}
	name := broker.Name(consumer)
	if _, err := channel.QueueDeclare(name, true, false, false, false, nil); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = channel.QueueDelete(name, false, false, false) })
	return name, channel
}

func publish(ctx context.Context, channel *amqp.Channel, queue string, msg *message.Message) error {
	headers := amqp.Table{}
	for key, value := range msg.Metadata {
		headers[key] = value
	}
	return channel.PublishWithContext(ctx, "", queue, false, false,
		amqp.Publishing{MessageId: msg.UUID, Headers: headers, Body: msg.Payload, DeliveryMode: amqp.Persistent})
}

// passing is a subscriber that kills the process if the armed point is one of its
// deliveries or acks.
type passing struct{ message.Subscriber }

func (p passing) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	in, err := p.Subscriber.Subscribe(ctx, topic)
	if err != nil {
		return nil, err
	}
	out := make(chan *message.Message)
	go func() {
		defer close(out)
		for msg := range in {
			reach("receive", before)
			passed := msg.Copy()
			passed.SetContext(msg.Context())
			go answer(msg, passed)
			out <- passed
		}
	}()
	return out, nil
}

// answer waits until the parameter passed, which is a copy of msg, is acked or nacked.
// Then it acks or nacks msg.
func answer(msg, passed *message.Message) {
	select {
	case <-passed.Acked():
		reach("ack", before)
		msg.Ack()
		reach("ack", after) // the ack may not have reached the broker
	case <-passed.Nacked():
		msg.Nack()
	}
}
