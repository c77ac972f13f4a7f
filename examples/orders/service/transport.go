package service

import "github.com/ThreeDotsLabs/watermill/message"

// Transport carries events from the forwarder to the consumers. [RabbitMQ] uses a
// broker, and [Embedded] uses the service's own database. Each has its own file:
// transport_rabbitmq.go and transport_embedded.go. Keep the file that you need, and
// delete the other one.
type Transport interface {
	// Publisher returns the publisher for the forwarder.
	Publisher() message.Publisher

	// Subscriber returns the subscriber for a subscription, and creates its queue.
	Subscriber(to Subscription) (message.Subscriber, error)

	// Check returns an error for a message that the transport can never carry, so that
	// the outbox refuses it.
	Check(topic string, msg *message.Message) error

	// Close closes the publisher and every subscriber.
	Close() error
}
