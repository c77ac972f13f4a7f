package retry

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/internal/parked"
)

// Subscriber wraps the subscriber of one handler: it delivers the messages of
// sub and, among them, the parked messages of the consumer that have become
// due, replayed ones included. consumer is the stable name that its messages
// are counted, parked and deduplicated under; the router's handler name can
// change, this must not.
//
// It wraps, and is not added to the router as a decorator, because it must
// know whose messages to fetch.
//
// One handler of a process has the messages of a consumer and topic: Subscribe
// is [ErrConsumerInUse] while another subscription with the same *sql.DB runs under
// that name, unless Config.ShareConsumer is set. Other topics, and other
// processes of the service, may use it. A handler of another name, or of another
// program, that uses it in the same database is logged as an error.
//
// Close stops fetching, closes sub, and waits until the messages in hand are
// settled, up to Config.CloseTimeout. The error is ErrGivenBack with their
// number if some were not. Subscribe is [ErrClosed] after it.
func (r *Retries) Subscriber(consumer string, sub message.Subscriber) message.Subscriber {
	return &subscriber{retries: r, consumer: consumer, sub: sub, over: make(chan struct{})}
}

type subscriber struct {
	retries  *Retries
	consumer string
	sub      message.Subscriber

	mu      sync.Mutex
	closed  bool
	cancels []context.CancelFunc

	closeOnce sync.Once
	closeErr  error
	running   sync.WaitGroup
	over      chan struct{} // closed when answers are no longer waited for
	givenBack atomic.Int64  // messages without an answer
}

// Subscribe implements message.Subscriber.
func (s *subscriber) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	switch {
	case s.consumer == "":
		return nil, errors.New("retry: the consumer name of Subscriber is empty")
	case s.sub == nil:
		return nil, errors.New("retry: the subscriber given to Subscriber is nil")
	}
	if err := parked.CheckName(s.consumer); err != nil {
		return nil, fmt.Errorf("retry: the consumer name of Subscriber: %w", err)
	}
	if err := parked.CheckName(topic); err != nil {
		return nil, fmt.Errorf("retry: the topic: %w", err)
	}
	closing, err := s.opened(ctx)
	if err != nil {
		return nil, err
	}
	use, drop, err := s.retries.store.Use(s.consumer, topic, s.retries.config.ShareConsumer, closing.Done())
	if err != nil {
		return nil, fmt.Errorf("retry: %w: give each handler its own consumer name; "+
			"to add one handler more than once, set retry.Config.ShareConsumer", inUseError{err})
	}
	f := newFeed(s, topic, closing.Done())
	f.use = use
	// The wrapped subscriber has ctx itself: when Close is called it is closed,
	// not cancelled, and may drain.
	in, err := s.sub.Subscribe(parked.WithSubscription(ctx, f.subscription()), topic)
	if err != nil {
		drop()
		return nil, err
	}

	out := make(chan *message.Message)
	unwatch := s.retries.watch()
	s.running.Go(func() {
		defer drop()
		defer unwatch()
		defer close(out)
		var both sync.WaitGroup
		both.Go(func() { f.forward(ctx, in, out) })
		both.Go(func() { f.run(ctx, out) })
		both.Wait()
	})
	return out, nil
}

// opened returns a context that ends with ctx or, before Close does anything
// else, with the subscriber: a handler that fails because the transport is
// being closed must already see that the consumer shuts down.
func (s *subscriber) opened(ctx context.Context) (context.Context, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, ErrClosed
	}
	closing, cancel := context.WithCancel(ctx)
	s.cancels = append(s.cancels, cancel)
	return closing, nil
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
		s.mu.Lock()
		s.closed = true
		for _, cancel := range s.cancels {
			cancel()
		}
		s.mu.Unlock()
		timeout := s.retries.config.CloseTimeout
		defer time.AfterFunc(timeout, func() { close(s.over) }).Stop()
		if s.sub != nil {
			s.closeErr = s.sub.Close()
		}
		s.running.Wait()
		if n := s.givenBack.Load(); n > 0 {
			s.closeErr = errors.Join(s.closeErr, fmt.Errorf("%w: %d messages that had no answer after CloseTimeout %v", ErrGivenBack, n, timeout))
		}
	})
	return s.closeErr
}
