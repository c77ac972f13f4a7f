package embedded

import (
	"context"
	"fmt"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/internal/failpoint"
)

// ErrClosed says that the transport or subscriber was closed.
var ErrClosed error = closedError{}

type closedError struct{}

func (closedError) Error() string { return "embedded: closed" }

// Unavailable tells the forwarder that nothing was sent, whatever the message.
func (closedError) Unavailable() bool { return true }

// NoConsumerError says that no consumer is registered for the topic, so that
// the message would be lost. It is a refusal: the forwarder backs off and tries
// again.
type NoConsumerError struct {
	Topic string
}

func (e *NoConsumerError) Error() string {
	return fmt.Sprintf("embedded: no consumer has ever subscribed to %q: start its router once before messages are forwarded", e.Topic)
}

// Refused tells the forwarder that this very message was refused.
func (e *NoConsumerError) Refused() bool { return true }

// Publish commits messages for every consumer that is registered for topic,
// running or not, all or none. Consumers of this process look at once, those of
// others when they poll. Publishing a message again does no harm while a
// consumer still has it; dedup sees to the rest.
//
// It is a [NoConsumerError] if no consumer has ever subscribed to topic. A
// consumer that subscribes for the first time gets what is published from then
// on.
func (t *Transport) Publish(topic string, messages ...*message.Message) error {
	if len(messages) == 0 {
		return nil
	}
	t.mu.Lock()
	closed := t.closed
	t.mu.Unlock()
	if closed {
		return ErrClosed
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(messages[0].Context()), t.config.PublishTimeout)
	defer cancel()
	failpoint.Hit("embedded/deliver")
	to, err := t.store.Publish(ctx, topic, messages...)
	if err != nil {
		return fmt.Errorf("embedded: publish to %q: %w", topic, err)
	}
	if len(to) == 0 {
		return &NoConsumerError{Topic: topic}
	}
	failpoint.Hit("embedded/delivered")
	t.wake(topic)
	t.warn(to)
	return nil
}
