package local

import (
	"context"
	"fmt"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/internal/failpoint"
	"github.com/watermill-once/once/internal/parked"
)

// ErrClosed says that the transport or subscriber was closed.
var ErrClosed error = closedError{}

type closedError struct{}

func (closedError) Error() string { return "local: closed" }

// Unavailable tells the forwarder that nothing was sent, whatever the message.
func (closedError) Unavailable() bool { return true }

// NoConsumerError says that no consumer is registered for the topic, so that
// the message would be lost. It is a refusal: the forwarder backs off and tries
// again.
type NoConsumerError struct {
	Topic string
}

func (e *NoConsumerError) Error() string {
	return fmt.Sprintf("local: no consumer has subscribed to %q", e.Topic)
}

// Refused tells the forwarder that this very message was refused.
func (e *NoConsumerError) Refused() bool { return true }

// Publish commits messages for every consumer of topic, all or none, and has
// them look at once. Publishing a message again does no harm while a consumer
// still has it; dedup sees to the rest.
func (t *Transport) Publish(topic string, messages ...*message.Message) error {
	if len(messages) == 0 {
		return nil
	}
	subscriptions, err := t.subscriptions(topic)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(messages[0].Context()), t.config.PublishTimeout)
	defer cancel()
	failpoint.Hit("local/deliver")
	if err := t.store.DeliverTo(ctx, topic, subscriptions, messages...); err != nil {
		return fmt.Errorf("local: publish to %q: %w", topic, err)
	}
	failpoint.Hit("local/delivered")
	for _, s := range subscriptions {
		s.Wake()
	}
	return nil
}

func (t *Transport) subscriptions(topic string) ([]parked.Subscription, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return nil, ErrClosed
	}
	if len(t.topics[topic]) == 0 {
		return nil, &NoConsumerError{Topic: topic}
	}
	return t.topics[topic], nil
}
