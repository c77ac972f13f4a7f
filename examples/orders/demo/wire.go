package demo

import "context"

// Wire lets the demo use the transport without the service, to send malformed messages
// and to count the messages in the queues.
type Wire interface {
	// Backend returns "embedded" if messages are delivered inside the database, or
	// "servers" if they are delivered by RabbitMQ.
	Backend() string

	// Send sends a malformed message to a topic.
	Send(ctx context.Context, topic string, m Malformed) error

	// Waiting counts the messages that wait in the queues. It does not count messages
	// that a consumer has already received.
	Waiting(ctx context.Context) (int, error)

	// Close closes the demo's own connections.
	Close() error
}
