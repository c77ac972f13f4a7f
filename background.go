package once

import (
	"context"
	"sync"

	"github.com/ThreeDotsLabs/watermill/message"
)

// background runs the function work while a router has at least one subscription.
type background struct {
	work func(ctx context.Context)

	mu            sync.Mutex
	subscriptions int
	stop          context.CancelFunc
}

// decorate implements message.SubscriberDecorator.
func (b *background) decorate(sub message.Subscriber) (message.Subscriber, error) {
	return &countedSubscriber{Subscriber: sub, background: b}, nil
}

func (b *background) subscribed(ctx context.Context) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.subscriptions++
	if b.subscriptions == 1 {
		var workCtx context.Context
		workCtx, b.stop = context.WithCancel(context.WithoutCancel(ctx))
		go b.work(workCtx)
	}
	context.AfterFunc(ctx, b.unsubscribed)
}

func (b *background) unsubscribed() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.subscriptions--
	if b.subscriptions == 0 {
		b.stop()
	}
}

// countedSubscriber counts the subscriptions of a handler. A subscription ends when the
// context of Subscribe ends. The router cancels this context when the handler stops.
type countedSubscriber struct {
	message.Subscriber

	background *background
	before     func() error // runs before Subscribe; may be nil
}

func (s *countedSubscriber) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	if s.before != nil {
		if err := s.before(); err != nil {
			return nil, err
		}
	}
	in, err := s.Subscriber.Subscribe(ctx, topic)
	if err == nil {
		s.background.subscribed(ctx)
	}
	return in, err
}
