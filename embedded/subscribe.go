package embedded

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/internal/parkedrows"
	"github.com/watermill-once/once/schema"
)

// Subscriber returns a subscriber for one consumer. Wrap it with the Subscriber of a retry.Retries,
// which sets the consumer's name and fetches its messages.
func (t *Transport) Subscriber() message.Subscriber {
	return &subscriber{transport: t, closing: make(chan struct{})}
}

type subscriber struct {
	transport *Transport
	closeOnce sync.Once
	closing   chan struct{}
	running   sync.WaitGroup
}

type subscription struct {
	registration

	wake func()
}

// Subscribe registers the consumer for topic in the database, until [Transport.Forget]: messages
// that are published while it does not run wait for it. If Subscribe fails, or ctx has ended, it is
// uncertain whether it is registered.
//
// The channel delivers no messages, because package retry fetches them from the database. It is
// closed when ctx ends or Close is called.
func (s *subscriber) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	to, ok := parkedrows.SubscriptionOf(ctx)
	if !ok {
		return nil, errors.New("embedded: the subscriber needs retry's Subscriber around it, which names the consumer and fetches its messages")
	}
	select {
	case <-s.closing:
		return nil, closedError{}
	default:
	}
	if err := s.transport.register(ctx, topic, to); err != nil {
		return nil, err
	}
	running := &subscription{registration{to.Consumer, topic}, to.Wake}
	s.transport.start(running)

	out := make(chan *message.Message)
	s.running.Go(func() {
		defer close(out)
		defer s.transport.end(running)
		select {
		case <-ctx.Done():
		case <-s.closing:
		}
	})
	return out, nil
}

// Close ends the subscriptions, and waits until they have ended.
func (s *subscriber) Close() error {
	s.closeOnce.Do(func() { close(s.closing) })
	s.running.Wait()
	return nil
}

func (t *Transport) register(ctx context.Context, topic string, to parkedrows.Subscription) error {
	bounded, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	_, err := t.store.Register(bounded, parkedrows.Consumer{
		Consumer: to.Consumer, Topic: topic, Embedded: true, KeyOrder: to.KeyOrder, Owner: to.Owner, Limit: to.Limit,
	})
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil: // the service stops while it starts, which is not a failure
		return nil
	}
	if cause := schema.Check(bounded, t.store.DB(), t.config.Schema); cause != nil { // this error names missing tables and the remedy
		err = fmt.Errorf("%w: %w", cause, err)
	}
	return fmt.Errorf("embedded: %w", err)
}

func (t *Transport) start(s *subscription) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.running[s] = struct{}{}
}

func (t *Transport) end(s *subscription) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.running, s)
}

// Subscriptions in other processes fetch messages every retry.Config.PollInterval.
func (t *Transport) wake(topic string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for s := range t.running {
		if s.topic == topic {
			s.wake()
		}
	}
}
