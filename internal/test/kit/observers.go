package kit

import (
	"context"
	"sync"
	"sync/atomic"

	"github.com/ThreeDotsLabs/watermill/message"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/metric/noop"
)

// Observers is a metric.MeterProvider that counts the registered callbacks.
type Observers struct {
	noop.MeterProvider

	registered atomic.Int64
}

// Registered returns the number of callbacks that were registered and not unregistered
// since then.
func (o *Observers) Registered() int64 { return o.registered.Load() }

// Meter implements metric.MeterProvider.
func (o *Observers) Meter(string, ...metric.MeterOption) metric.Meter {
	return observedMeter{registered: &o.registered}
}

type observedMeter struct {
	noop.Meter

	registered *atomic.Int64
}

func (m observedMeter) RegisterCallback(metric.Callback, ...metric.Observable) (metric.Registration, error) {
	m.registered.Add(1)
	return registration{registered: m.registered}, nil
}

type registration struct {
	noop.Registration

	registered *atomic.Int64
}

func (r registration) Unregister() error {
	r.registered.Add(-1)
	return nil
}

// WatchedContext is a context that counts the contexts and functions that wait for its
// end. If the code under test has finished and the context has not ended, each context
// and function that is still counted is a leak.
type WatchedContext struct {
	context.Context

	watches atomic.Int64
}

// Watch returns a context that ends with ctx.
func Watch(ctx context.Context) *WatchedContext { return &WatchedContext{Context: ctx} }

// Watches returns how many contexts and functions wait for the end of w.
func (w *WatchedContext) Watches() int64 { return w.watches.Load() }

// Value returns nil. Otherwise package context would find the inner context through
// Value, and would not call AfterFunc.
func (w *WatchedContext) Value(any) any { return nil }

// AfterFunc implements an interface of package context, see context.AfterFunc.
func (w *WatchedContext) AfterFunc(f func()) (stop func() bool) {
	w.watches.Add(1)
	end := context.AfterFunc(w.Context, f)
	forget := sync.OnceFunc(func() { w.watches.Add(-1) })
	return func() bool {
		forget()
		return end()
	}
}

// Subscriber is a subscriber for tests. A test sends messages to the channel Messages,
// and Subscriber delivers them to its subscription. It can have only one subscription,
// and does not limit the number of messages in flight.
type Subscriber struct {
	Messages chan *message.Message

	closeOnce sync.Once
}

// NewSubscriber returns a Subscriber.
func NewSubscriber() *Subscriber { return &Subscriber{Messages: make(chan *message.Message)} }

// Subscribe returns the channel Messages. The subscription also ends when ctx ends,
// because a router that is closed always cancels ctx, but does not always call Close.
func (s *Subscriber) Subscribe(ctx context.Context, _ string) (<-chan *message.Message, error) {
	context.AfterFunc(ctx, func() { _ = s.Close() })
	return s.Messages, nil
}

// Close closes the channel Messages.
func (s *Subscriber) Close() error {
	s.closeOnce.Do(func() { close(s.Messages) })
	return nil
}
