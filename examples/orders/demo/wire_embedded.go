package demo

import (
	"context"
	"maps"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/examples/orders/service"
)

// EmbeddedWire is the [Wire] of the embedded transport.
type EmbeddedWire struct {
	Transport *service.Embedded
}

// Backend implements [Wire].
func (w EmbeddedWire) Backend() string { return "embedded" }

// Send implements [Wire].
func (w EmbeddedWire) Send(_ context.Context, topic string, m Malformed) error {
	msg := message.NewMessage(m.ID, m.Payload)
	maps.Copy(msg.Metadata, m.Headers)
	return w.Transport.Publisher().Publish(topic, msg)
}

// Waiting implements [Wire]. It returns 0, because the messages are in the table of
// parked messages, and the audit counts that table.
func (w EmbeddedWire) Waiting(context.Context) (int, error) { return 0, nil }

// Close implements [Wire].
func (w EmbeddedWire) Close() error { return nil }
