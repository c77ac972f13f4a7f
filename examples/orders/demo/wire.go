package demo

import (
	"context"
	"maps"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/examples/orders/service"
)

// Wire is the transport without the service: as foreign senders use it, and as
// its operator looks at it.
type Wire interface {
	// Backend is "embedded" or "servers".
	Backend() string

	// Send sends a message to a topic.
	Send(ctx context.Context, topic string, r Rubbish) error

	// Waiting counts the messages that wait in queues.
	Waiting(ctx context.Context) (int, error)

	// Close closes connections of its own.
	Close() error
}

// LocalWire is the embedded transport.
type LocalWire struct {
	Transport *service.Local
}

// Backend implements [Wire].
func (w LocalWire) Backend() string { return "embedded" }

// Send implements [Wire].
func (w LocalWire) Send(_ context.Context, topic string, r Rubbish) error {
	msg := message.NewMessage(r.ID, r.Payload)
	maps.Copy(msg.Metadata, r.Headers)
	return w.Transport.Publisher().Publish(topic, msg)
}

// Waiting implements [Wire]. What is on its way is in the table of parked
// messages, and counted there.
func (w LocalWire) Waiting(context.Context) (int, error) { return 0, nil }

// Close implements [Wire].
func (w LocalWire) Close() error { return nil }
