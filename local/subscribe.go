package local

import (
	"context"
	"errors"
	"slices"
	"sync"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/internal/parked"
)

// Subscriber returns the receiving end for one consumer, to be wrapped by
// retry's Subscriber: that gives it the consumer's name and fetches what was
// published to it.
func (t *Transport) Subscriber() message.Subscriber {
	return &subscriber{transport: t, closing: make(chan struct{})}
}

type subscriber struct {
	transport *Transport
	closeOnce sync.Once
	closing   chan struct{}
	running   sync.WaitGroup
}

// Subscribe registers the consumer for topic. It stays registered when the
// subscription ends, as a queue stays bound: what is published meanwhile waits
// for it. The returned channel carries nothing and ends with ctx or Close.
func (s *subscriber) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	subscription, ok := parked.SubscriptionOf(ctx)
	if !ok {
		return nil, errors.New("local: the subscriber needs retry's Subscriber around it, which names the consumer and fetches its messages")
	}
	select {
	case <-s.closing:
		return nil, ErrClosed
	default:
	}
	s.transport.register(topic, subscription)

	out := make(chan *message.Message)
	s.running.Go(func() {
		defer close(out)
		select {
		case <-ctx.Done():
		case <-s.closing:
		}
	})
	return out, nil
}

// Close ends the subscriptions.
func (s *subscriber) Close() error {
	s.closeOnce.Do(func() { close(s.closing) })
	s.running.Wait()
	return nil
}

// register puts a consumer in the place of its earlier subscription, if any.
func (t *Transport) register(topic string, subscription parked.Subscription) {
	t.mu.Lock()
	defer t.mu.Unlock()
	others := slices.DeleteFunc(slices.Clone(t.topics[topic]), func(s parked.Subscription) bool {
		return s.Consumer == subscription.Consumer
	})
	t.topics[topic] = append(others, subscription)
}
