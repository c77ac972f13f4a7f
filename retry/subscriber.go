package retry

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/internal/gather"
	"github.com/watermill-once/once/internal/parked"
)

// Subscriber wraps the subscriber of one handler. It delivers the messages of sub. It
// also delivers the parked messages of the consumer when they are due, including
// replayed messages. The parameter consumer is the permanent name under which messages
// are counted, parked and deduplicated. You may rename the router's handler, but not
// the consumer.
//
// You must wrap each subscriber yourself. A subscriber decorator of the router cannot
// do this, because it does not know the consumer's name.
//
// A process may run only one handler for each consumer and topic. While another
// subscription with the same *sql.DB uses the consumer and topic, Subscribe fails with
// [ErrConsumerInUse], unless Config.ShareConsumer is set. The consumer name may be used
// for other topics, and by other processes of the service. If a handler with another
// name, or in another program, uses the consumer name in the same database, an error is
// logged.
//
// Close stops fetching, closes sub, and waits up to Config.CloseTimeout for the acks of
// messages that handlers have received. If acks are still missing after that time,
// Close returns an error that wraps [ErrGivenBack] and contains the number of messages.
// After Close, Subscribe fails.
func (r *Retries) Subscriber(consumer string, sub message.Subscriber) message.Subscriber {
	return &subscriber{retries: r, consumer: consumer, sub: sub, closeTimeout: make(chan struct{})}
}

type subscriber struct {
	retries  *Retries
	consumer string
	sub      message.Subscriber

	mu      sync.Mutex
	closed  bool
	cancels []context.CancelFunc

	closeOnce    sync.Once
	closeErr     error
	running      sync.WaitGroup
	closeTimeout chan struct{} // closed when Config.CloseTimeout has passed
	unanswered   atomic.Int64  // number of messages that were neither acked nor nacked when CloseTimeout had passed
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
	closing, err := s.withShutdown(ctx)
	if err != nil {
		return nil, err
	}
	use, drop, err := s.retries.store.Use(s.consumer, topic, s.retries.config.ShareConsumer, closing.Done())
	if err != nil {
		return nil, fmt.Errorf("retry: %w: give each handler its own consumer name; "+
			"to add one handler more than once, set retry.Config.ShareConsumer", inUseError{err})
	}
	f := newFetcher(s, topic, closing.Done(), gather.Of(ctx))
	f.use = use
	// The wrapped subscriber gets the context ctx. The context closing ends when Close
	// begins, but at that time the wrapped subscriber must still finish its messages. Close
	// closes the wrapped subscriber, and does not cancel its context.
	in, err := s.sub.Subscribe(parked.WithSubscription(ctx, f.subscription()), topic)
	if err != nil {
		drop()
		return nil, err
	}

	out := make(chan *message.Message)
	unwatch := s.retries.watch()
	s.running.Go(func() {
		defer close(out) // last, because the router may end as soon as out is closed
		defer drop()
		defer unwatch()
		var both sync.WaitGroup
		both.Go(func() { f.forward(ctx, in, out) })
		both.Go(func() { f.run(ctx, out) })
		both.Wait()
	})
	return out, nil
}

// withShutdown returns a context that ends when ctx ends, or at the beginning of Close.
// If a handler fails because the transport closes, the context has therefore already
// ended, and the failure is not counted as an attempt.
func (s *subscriber) withShutdown(ctx context.Context) (context.Context, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, errClosed
	}
	closing, cancel := context.WithCancel(ctx)
	s.cancels = append(s.cancels, cancel)
	return closing, nil
}

// SubscribeInitialize implements message.SubscribeInitializer. If the wrapped
// subscriber does not implement it, SubscribeInitialize does nothing.
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
		defer time.AfterFunc(timeout, func() { close(s.closeTimeout) }).Stop()
		if s.sub != nil {
			s.closeErr = s.sub.Close()
		}
		s.running.Wait()
		if n := s.unanswered.Load(); n > 0 {
			s.closeErr = errors.Join(s.closeErr,
				fmt.Errorf("%w: %d messages had neither ack nor nack after CloseTimeout %v", ErrGivenBack, n, timeout))
		}
	})
	return s.closeErr
}
