package durable

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/internal/parkedrows"
	"github.com/watermill-once/once/internal/usercode"
)

var errClosed = errors.New("durable: the subscriber is closed")

// usualBatch is the size of full batches without a configured number of messages in flight. Larger
// ones would save little time, and need more memory.
const usualBatch = 100

type subscriber struct {
	storage *Storage
	sub     message.Subscriber

	closeOnce sync.Once
	closeErr  error
	closing   chan struct{}
	running   sync.WaitGroup
}

// Subscribe implements message.Subscriber. The channel delivers only messages that the transport
// could not decode, and is closed when every message was acked or nacked.
func (s *subscriber) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	subscription, ok := parkedrows.SubscriptionOf(ctx)
	switch {
	case s.sub == nil:
		return nil, errors.New("durable: the subscriber given to Subscriber is nil")
	case !ok:
		return nil, errors.New("durable: the subscriber needs retry's Subscriber around it, " +
			"which names the consumer and fetches its messages")
	}
	select {
	case <-s.closing:
		return nil, errClosed
	default:
	}
	in, err := s.sub.Subscribe(usercode.WithInFlight(ctx, 2*min(s.storage.config.BatchSize, usualBatch)), topic)
	if err != nil {
		return nil, err
	}
	storage := s.storage
	subscription.Store(parkedrows.Stored{
		Ahead: storage.config.Ahead, Keep: storage.config.KeepHandled > 0, PerTenant: storage.config.TenantConcurrency,
		Handled: storage.instruments.handled,
	})

	stream := &stream{
		Storage:      storage,
		ctx:          ctx,
		subscription: subscription,
		delivery:     &parkedrows.Delivery{Consumer: subscription.Consumer, Topic: topic, Closing: s.closing},
		batches:      make(chan batch),
		ended:        make(chan struct{}),
	}
	out := make(chan *message.Message)
	s.running.Go(func() {
		defer close(out)
		var storing sync.WaitGroup
		storing.Go(stream.storeAll)
		stream.collect(in, out)
		storing.Wait()
	})
	if storage.config.KeepHandled > 0 {
		s.running.Go(stream.sweepAll)
	}
	return out, nil
}

// SubscribeInitialize implements message.SubscribeInitializer, if the wrapped subscriber does.
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

const (
	// The pause between two sweeps is a tenth of KeepHandled, within these limits.
	shortestPause = time.Second
	longestPause  = 10 * time.Minute

	sweepBatch   = 2000        // maximum number of rows that one transaction removes
	sweepTimeout = time.Minute // timeout of one transaction
)

// sweepAll removes rows older than KeepHandled until the subscription ends. Several instances do
// not wait for each other.
func (s *stream) sweepAll() {
	tick := time.NewTicker(min(max(s.config.KeepHandled/10, shortestPause), longestPause))
	defer tick.Stop()
	failing := false
	for {
		select {
		case <-tick.C:
		case <-s.ended:
			return
		}
		err := s.sweep()
		fields := watermill.LogFields{"consumer": s.delivery.Consumer, "topic": s.delivery.Topic}
		switch {
		case err != nil && !failing:
			s.config.Logger.Error("Rows of handled messages cannot be removed, retrying", err, fields)
		case err == nil && failing:
			s.config.Logger.Info("Rows of handled messages are removed again", fields)
		}
		failing = err != nil
	}
}

func (s *stream) sweep() error {
	for {
		ctx, cancel := context.WithTimeout(context.Background(), sweepTimeout)
		removed, err := s.Storage.store.Forget(ctx, s.delivery.Topic, s.delivery.Consumer, s.config.KeepHandled, sweepBatch)
		cancel()
		if err != nil || removed < sweepBatch {
			return err
		}
	}
}
