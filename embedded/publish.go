package embedded

import (
	"context"
	"fmt"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/internal/failpoint"
)

// closedError is the error of Publish and Subscribe after Close.
type closedError struct{}

func (closedError) Error() string { return "embedded: the transport or subscriber is closed" }

// Unavailable tells the forwarder that no message can be published now.
func (closedError) Unavailable() bool { return true }

// NoConsumerError means that no consumer is registered for the topic, so the message
// would be lost. The forwarder treats this error as a refusal: it waits, and publishes
// the message again.
type NoConsumerError struct {
	Topic string
}

func (e *NoConsumerError) Error() string {
	return fmt.Sprintf("embedded: no consumer has ever subscribed to %q: start its router once before messages are forwarded", e.Topic)
}

// Refused tells the forwarder that only this message was refused.
func (e *NoConsumerError) Refused() bool { return true }

// Publish stores messages for every consumer that is registered for topic, whether the
// consumer is running or not. It stores all messages or none. Consumers of this process
// receive them immediately, and consumers of other processes with their next poll. If a
// message is published again while its row exists, no second row is stored. If a
// message is published again after its row was deleted, package dedup ignores the copy.
//
// If no consumer is registered for topic, Publish fails with a [NoConsumerError]. A new
// consumer receives only messages that are published after its first subscription.
func (t *Transport) Publish(topic string, messages ...*message.Message) error {
	if len(messages) == 0 {
		return nil
	}
	t.mu.Lock()
	closed := t.closed
	t.mu.Unlock()
	if closed {
		return closedError{}
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
