package once

import (
	"context"
	"sync"

	"github.com/ThreeDotsLabs/watermill/message"
)

// attendance is work that goes on while a router has subscriptions.
type attendance struct {
	work func(ctx context.Context)

	mu            sync.Mutex
	subscriptions int
	stop          context.CancelFunc
}

// decorate implements message.SubscriberDecorator.
func (a *attendance) decorate(sub message.Subscriber) (message.Subscriber, error) {
	return &attended{Subscriber: sub, attendance: a}, nil
}

func (a *attendance) begin(ctx context.Context) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.subscriptions++
	if a.subscriptions == 1 {
		var working context.Context
		working, a.stop = context.WithCancel(context.WithoutCancel(ctx))
		go a.work(working)
	}
	context.AfterFunc(ctx, a.end)
}

func (a *attendance) end() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.subscriptions--
	if a.subscriptions == 0 {
		a.stop()
	}
}

// attended is the subscriber of a handler, of which the router ends the context
// of Subscribe when the handler has stopped.
type attended struct {
	message.Subscriber

	attendance *attendance
	before     func() error // of the first Subscribe, or nil
}

func (s *attended) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	if s.before != nil {
		if err := s.before(); err != nil {
			return nil, err
		}
	}
	in, err := s.Subscriber.Subscribe(ctx, topic)
	if err == nil {
		s.attendance.begin(ctx)
	}
	return in, err
}
