package service

import "github.com/ThreeDotsLabs/watermill/message"

// Transport carries events from the forwarder to the consumers: [AMQP], or
// [Local] without a broker.
type Transport interface {
	// Publisher is what the forwarder publishes to.
	Publisher() message.Publisher

	// Subscriber returns the receiving end of a subscription. Its queue exists
	// from then on.
	Subscriber(to Subscription) (message.Subscriber, error)

	// Close closes the publisher and the subscribers, which the router has
	// closed before if it ran.
	Close() error
}
