package durable

import (
	"context"
	"errors"
	"sync"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/internal/parked"
)

// ErrClosed says that the subscriber was closed.
var ErrClosed = errors.New("durable: closed")

type subscriber struct {
	intake *Storage
	sub    message.Subscriber

	closeOnce sync.Once
	closeErr  error
	closing   chan struct{}
	running   sync.WaitGroup
}

// Subscribe implements message.Subscriber. The returned channel carries what
// cannot be decoded, and ends when all that was delivered is settled.
func (s *subscriber) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	subscription, ok := parked.SubscriptionOf(ctx)
	switch {
	case s.sub == nil:
		return nil, errors.New("durable: the subscriber given to Subscriber is nil")
	case !ok:
		return nil, errors.New("durable: the subscriber needs retry's Subscriber around it, " +
			"which names the consumer and fetches its messages")
	}
	select {
	case <-s.closing:
		return nil, ErrClosed
	default:
	}
	in, err := s.sub.Subscribe(ctx, topic)
	if err != nil {
		return nil, err
	}
	i := s.intake
	subscription.Store(parked.Stored{Ahead: i.config.Ahead, Keep: i.config.KeepHandled > 0, Handled: i.instruments.handled})

	stream := &stream{
		Storage:      i,
		ctx:          ctx,
		subscription: subscription,
		delivery:     &parked.Delivery{Consumer: subscription.Consumer, Topic: topic, Closing: s.closing},
		batches:      make(chan batch),
		ended:        make(chan struct{}),
	}
	out := make(chan *message.Message)
	s.running.Go(func() {
		defer close(out)
		var storing sync.WaitGroup
		storing.Go(stream.storeAll)
		stream.gather(in, out)
		storing.Wait()
	})
	if i.config.KeepHandled > 0 {
		s.running.Go(stream.sweepAll)
	}
	return out, nil
}

// SubscribeInitialize implements message.SubscribeInitializer where sub does.
func (s *subscriber) SubscribeInitialize(topic string) error {
	if initializer, ok := s.sub.(message.SubscribeInitializer); ok {
		return initializer.SubscribeInitialize(topic)
	}
	return nil
}

// Close implements message.Subscriber.
func (s *subscriber) Close() error {
	s.closeOnce.Do(func() {
		close(s.closing)
		if s.sub != nil {
			s.closeErr = s.sub.Close()
		}
		s.running.Wait()
	})
	return s.closeErr
}
