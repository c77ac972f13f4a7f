package rabbit

import (
	"context"
	"errors"
	"net"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/watermill-once/once/internal/test/kit"
)

// When Close returns, no goroutine of the Subscriber is left. The connection is closed
// after the subscriptions have sent their acks.
func TestCloseOfASubscriberWaitsForItsGoroutines(t *testing.T) {
	t.Parallel()
	for _, requestEndsFirst := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			s := &Subscriber{reconnectorDone: make(chan struct{})}
			s.ctx, s.cancel = context.WithCancel(t.Context())
			s.closing, s.startClosing = context.WithCancel(t.Context())
			s.instruments = newSubscriberInstruments(s)
			reply := make(chan struct{})
			s.background.Go(func() { <-reply })
			s.begin()
			ended := kit.Go(s.Close)
			waits := func(reason string) {
				t.Helper()
				synctest.Wait()
				if len(ended) > 0 {
					t.Fatalf("Close has returned before %s", reason)
				}
			}

			waits("the subscription ends")
			if s.closing.Err() == nil || s.ctx.Err() != nil {
				t.Errorf("closing is %v, the end of the connection %v; want only the first", s.closing.Err(), s.ctx.Err())
			}
			s.subscriptions.Done()
			waits("the connection is closed")
			if s.ctx.Err() == nil {
				t.Error("nothing has told the reconnector to end")
			}
			first, last := s.reconnectorDone, reply
			if requestEndsFirst {
				first, last = last, first
			}
			close(first)
			waits("all goroutines have ended")
			close(last)
			kit.Check(t, <-ended)
		})
	}
}

// When Close returns, no goroutine of the Publisher is left. Outcomes are reported until
// the connection is closed.
func TestCloseOfAPublisherWaitsForItsGoroutines(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := &Publisher{
			cfg: PublisherConfig{CloseTimeout: time.Second}, wake: make(chan struct{}, 1), changed: make(chan struct{}),
			reconnectorDone: make(chan struct{}), confirmsDone: make(chan struct{}),
		}
		p.ctx, p.cancel = context.WithCancel(t.Context())
		p.instruments = newInstruments(p)
		ended := kit.Go(p.Close)

		synctest.Wait()
		if p.ctx.Err() == nil || p.stopping {
			t.Errorf("the end of the connection is %v and stopping is %t; want only the first", p.ctx.Err(), p.stopping)
		}
		close(p.reconnectorDone)
		synctest.Wait()
		if !p.stopping || len(p.wake) != 1 {
			t.Errorf("stopping is %t with %d signals, want one", p.stopping, len(p.wake))
		}
		if len(ended) > 0 {
			t.Error("Close has returned before all outcomes are reported")
		}
		close(p.confirmsDone)
		kit.Check(t, <-ended)
	})
}

// A Subscriber keeps no data of a subscription that has ended. Otherwise a service that
// subscribes again and again would need more and more memory.
func TestEndedSubscriptionIsForgotten(t *testing.T) {
	t.Parallel()
	broker := kit.Rabbit(t)
	s, err := NewSubscriber(amqp.NewDurableQueueConfig(broker.URL), SubscriberConfig{Logger: watermill.NopLogger{}})
	kit.OK(t, err)
	defer s.Close()
	closing := kit.Watch(s.closing)
	s.closing = closing
	topic := broker.Name("topic")
	forgotten := func(what string) {
		t.Helper()
		if n := closing.Watches(); n != 0 {
			t.Errorf("%s: %d functions wait for Close, want none", what, n)
		}
	}

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := s.Subscribe(ctx, topic); !errors.Is(err, context.Canceled) {
		t.Errorf("a subscription that has ended: got %v, want context.Canceled", err)
	}
	forgotten("a subscription that fails")
	kit.OK(t, s.SubscribeInitialize(topic))
	forgotten("a declaration")
	ctx, cancel = context.WithCancel(t.Context())
	defer cancel()
	messages, err := s.Subscribe(ctx, topic)
	kit.OK(t, err)
	if n := closing.Watches(); n != 1 {
		t.Errorf("%d functions wait for Close, want that of the subscription", n)
	}
	cancel()
	for range messages {
		t.Error("got a message")
	}
	s.subscriptions.Wait()
	forgotten("a subscription")
}

// A channel may still be opening when its subscription ends. As soon as the channel is
// open, it is closed, and the context of its messages is cancelled.
func TestChannelIsDiscardedWhenItIsOpen(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		o := &opening{consumeChannel: &consumeChannel{}, done: make(chan struct{})}
		o.ctx, o.lose = context.WithCancelCause(t.Context())
		sub := &subscription{opening: o}
		sub.discardOpening()
		synctest.Wait()
		if o.ctx.Err() != nil {
			t.Error("it is discarded before it is open")
		}
		close(o.done)
		sub.running.Wait()
		if err := context.Cause(o.ctx); !errors.Is(err, errCloseTimeout) {
			t.Errorf("the context has ended with %v, want %v", err, errCloseTimeout)
		}
	})
}

// If the broker does not open a channel within the timeout of the connection,
// openChannel returns an error. The next call waits for the same channel.
func TestOpeningAChannelHasADeadline(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		o := &opening{consumeChannel: &consumeChannel{}, done: make(chan struct{})}
		sub, conn := &subscription{opening: o, ctx: t.Context()}, &connection{timeout: 30 * time.Second}
		began := time.Now()
		_, err := sub.openChannel(conn)
		if took := time.Since(began); !errors.Is(err, errNoReply) || took != conn.timeout {
			t.Errorf("got %v after %v, want %v after %v", err, took, errNoReply, conn.timeout)
		}
		close(o.done)
		if ch, err := sub.openChannel(conn); ch != o.consumeChannel || err != nil {
			t.Errorf("got %p and %v, want %p", ch, err, o.consumeChannel)
		}
	})
}

// If Subscribe is cancelled while the broker opens its channel, no channel is left.
// Close waits until the channel is closed.
func TestCancelledSubscribeLeavesNoChannel(t *testing.T) {
	t.Parallel()
	broker := kit.Rabbit(t)
	conn := &paused{reading: make(chan struct{}, 1)}
	config := amqp.NewDurableQueueConfig(broker.URL)
	config.Connection.AmqpConfig = &amqp091.Config{ChannelMax: 1, Dial: func(network, address string) (_ net.Conn, err error) {
		conn.Conn, err = new(net.Dialer).DialContext(t.Context(), network, address)
		return conn, err
	}}
	s, err := NewSubscriber(config, SubscriberConfig{DialTimeout: time.Minute, Logger: watermill.NopLogger{}})
	kit.OK(t, err)
	defer s.Close()
	topic := broker.Name("topic")
	kit.OK(t, s.SubscribeInitialize(topic))
	conn.gate.Lock()
	for len(conn.reading) > 0 {
		<-conn.reading
	}
	ctx, cancel := context.WithCancel(t.Context())
	failed := make(chan error, 1)
	go func() {
		_, err := s.Subscribe(ctx, topic)
		failed <- err
	}()
	<-conn.reading // the broker has opened the channel
	cancel()
	if err := <-failed; !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want context.Canceled", err)
	}
	ended := make(chan struct{})
	go func() {
		s.background.Wait()
		close(ended)
	}()
	select {
	case <-ended:
		t.Error("Close would not wait for the channel")
	case <-time.After(20 * time.Millisecond):
	}
	conn.gate.Unlock()
	<-ended
	if err := s.SubscribeInitialize(topic); err != nil {
		t.Errorf("the only channel of the connection is still open: %v", err)
	}
}

// paused is a connection that receives nothing while gate is locked.
type paused struct {
	net.Conn

	reading chan struct{} // gets a value when something has been received
	gate    sync.RWMutex
}

func (p *paused) Read(b []byte) (int, error) {
	n, err := p.Conn.Read(b)
	notify(p.reading)
	p.gate.RLock()
	defer p.gate.RUnlock()
	return n, err
}
