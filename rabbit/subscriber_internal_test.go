package rabbit

import (
	"context"
	"errors"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/internal/testkit"
)

// The time to wait for a connection begins when the connection is lost, and not with each
// failed attempt to connect.
func TestWaitForAConnectionBeginsWithItsLoss(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &Subscriber{cfg: SubscriberConfig{ReadyTimeout: time.Minute}, changed: make(chan struct{}), downSince: time.Now()}
		refused := errors.New("refused")
		wait := func(ctx context.Context, want time.Duration, reasons ...error) {
			t.Helper()
			began := time.Now()
			c, err := s.waitReady(ctx)
			if c != nil || time.Since(began) != want {
				t.Fatalf("got %v after %v, want nothing after %v", c, time.Since(began), want)
			}
			for _, reason := range reasons {
				if !errors.Is(err, reason) {
					t.Fatalf("got %v, want %v", err, reason)
				}
			}
		}
		pass(20 * time.Second)
		s.disconnected(refused)
		wait(t.Context(), 40*time.Second, refused)
		pass(time.Hour)
		wait(t.Context(), time.Millisecond, refused)

		s.conn = &connection{}
		s.disconnected(refused)
		if s.conn != nil {
			t.Fatal("the lost connection is used")
		}
		wait(t.Context(), time.Minute, refused)
		s.downSince = time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		wait(ctx, time.Second, refused, context.DeadlineExceeded)
		if n := s.connectionCount(); n != 0 {
			t.Errorf("%d connections, want none", n)
		}
		s.conn = &connection{}
		if n := s.connectionCount(); n != 1 {
			t.Errorf("%d connections, want one", n)
		}
	})
}

// The number of requeued messages that are remembered is limited.
func TestRequeuedMessagesAreForgotten(t *testing.T) {
	t.Parallel()
	n := make(requeueCounts)
	n.add("a")
	n.add("a")
	n.add("b")
	if n["a"] != 2 || n["b"] != 1 {
		t.Errorf("got %v", n)
	}
	n.forget("a")
	if len(n) != 1 {
		t.Errorf("got %v, want only b", n)
	}
	for i := range maxRemembered - 1 {
		n.add(strconv.Itoa(i))
	}
	if len(n) != 10_000 {
		t.Errorf("%d are remembered, want 10,000", len(n))
	}
	n.add("one more")
	if len(n) != 1 || n["one more"] != 1 {
		t.Errorf("%d are remembered, want one", len(n))
	}
}

// The defaults of functions and interfaces are set, too.
func TestTopologyHasDefaults(t *testing.T) {
	t.Parallel()
	topology, cfg := SubscriberConfig{NackMin: time.Minute}.withDefaults(amqp.Config{})
	if topology.Marshaler != (Marshaler{}) || topology.TopologyBuilder == nil || topology.QueueBind.GenerateRoutingKey("t") != "" ||
		cfg.Logger == nil || cfg.NackMax != time.Minute {
		t.Errorf("subscriber: got %+v and %+v", topology, cfg)
	}
	topology, publisher := PublisherConfig{}.withDefaults(amqp.Config{})
	if topology.Marshaler != (Marshaler{}) || topology.TopologyBuilder == nil || publisher.Logger == nil {
		t.Errorf("publisher: got %+v and %+v", topology, publisher)
	}
	limit := SubscriberConfig{InFlight: 2, LongestUnackedWait: 1 << 62}
	if got := limit.longestUnacked(2); got != 1<<62 {
		t.Errorf("limit.longestUnacked(2) is %v", got)
	}
	if got := limit.longestUnacked(4); got != 1<<63-1 {
		t.Errorf("limit.longestUnacked(4) is %v, want the longest Duration", got)
	}
}

// A subscription ends when its last request has ended: only then can the broker deliver
// the messages to another consumer.
func TestSubscriptionWaitsForItsRequests(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		sub := &subscription{s: &Subscriber{}}
		reply := make(chan struct{})
		sub.running.Go(func() { <-reply })
		ended := sub.ended()
		synctest.Wait()
		select {
		case <-ended:
			t.Error("it has ended before its request")
		default:
		}
		close(reply)
		<-ended
	})
}

// If the broker does not reply, the end of a subscription waits DialTimeout for it.
func TestEndWaitsDialTimeoutForTheBroker(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		logs := &testkit.Logs{}
		s := &Subscriber{cfg: SubscriberConfig{DialTimeout: 30 * time.Second, CloseTimeout: time.Minute, Logger: logs}}
		sub := &subscription{s: s, topic: "t", queue: "q", cancel: func() {}, stopped: make(chan struct{}), out: make(chan *message.Message)}
		reply := make(chan struct{})
		sub.running.Go(func() { <-reply })
		began := time.Now()
		sub.end(nil)
		if took := time.Since(began); took != 30*time.Second {
			t.Errorf("it took %v, want DialTimeout", took)
		}
		const line = "ERROR Unacked messages return to the queue when RabbitMQ replies queue=q topic=t " +
			"err=the broker has not replied yet; the queue may be stuck"
		if logs.CountLine(line) != 1 {
			t.Errorf("%q", logs.Lines())
		}
		close(reply)
		s.background.Wait()
	})
}
