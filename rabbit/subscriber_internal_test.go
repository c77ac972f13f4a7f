package rabbit

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/watermill-once/once/internal/testkit"
)

// The time to wait for a connection starts when the connection is lost. It does not start
// again with each failed attempt to connect.
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

// The Subscriber remembers only a limited number of requeued messages.
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

// Config fields that are functions or interfaces also have defaults.
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

// A subscription ends only after its last request, because the broker can deliver the
// messages to another consumer only then.
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

// If the broker does not reply, the end of a subscription waits for DialTimeout. The
// wait for the messages in flight comes first.
func TestEndWaitsDialTimeoutForTheBroker(t *testing.T) {
	t.Parallel()
	for inFlight, want := range map[int]time.Duration{0: 30 * time.Second, 1: 90 * time.Second} {
		synctest.Test(t, func(t *testing.T) {
			logs := &testkit.Logs{}
			s := &Subscriber{cfg: SubscriberConfig{DialTimeout: 30 * time.Second, CloseTimeout: time.Minute, Logger: logs}}
			s.closing = t.Context()
			s.instruments = newSubscriberInstruments(s)
			sub := &subscription{
				s: s, topic: "t", queue: "q", cancel: func() {}, stopped: make(chan struct{}), out: make(chan *message.Message), inFlight: inFlight,
			}
			reply := make(chan struct{})
			sub.running.Go(func() { <-reply })
			began := time.Now()
			sub.end(nil)
			if took := time.Since(began); took != want {
				t.Errorf("with %d messages in flight, it took %v, want %v", inFlight, took, want)
			}
			const line = "ERROR Unacked messages return to the queue when RabbitMQ replies queue=q topic=t " +
				"err=the broker has not replied yet; the queue may be stuck"
			const left = "ERROR Messages in flight given back"
			if logs.CountLine(line) != 1 || logs.Count(left) != inFlight || logs.Count(left, "messages=1") != inFlight {
				t.Errorf("%q", logs.Lines())
			}
			close(reply)
			s.background.Wait()
		})
	}
}

// If only the consumer was cancelled, its channel stays open for the messages in flight.
// The messages that no handler has received are given back at once.
func TestCancelledConsumerGivesBackBufferedMessages(t *testing.T) {
	t.Parallel()
	sub := &subscription{
		s: &Subscriber{cfg: SubscriberConfig{Logger: watermill.NopLogger{}}}, ctx: t.Context(), retired: make(map[*consumeChannel]bool),
	}
	sub.s.closing = t.Context()
	ch := &consumeChannel{sub: sub, conn: &connection{amqp: &amqp091.Connection{}}, ctx: t.Context(), inFlight: 1}
	requeued := &acknowledger{}
	var contexts []context.Context
	for i := range 2 {
		d := &delivery{channel: ch, raw: amqp091.Delivery{Acknowledger: requeued, DeliveryTag: uint64(i + 2)}}
		var ctx context.Context
		ctx, d.cancel = context.WithCancel(t.Context())
		contexts = append(contexts, ctx)
		ch.buffered = append(ch.buffered, d)
	}
	sub.retire(ch, errCancelled)
	if got := requeued.tags; !slices.Equal(got, []uint64{2, 3}) {
		t.Errorf("the deliveries %v are requeued, want 2 and 3", got)
	}
	if !sub.retired[ch] || ch.buffered != nil {
		t.Errorf("retired is %t with %d buffered messages", sub.retired[ch], len(ch.buffered))
	}
	for i, ctx := range contexts {
		if ctx.Err() == nil {
			t.Errorf("the context of message %d has not ended", i)
		}
	}
}

// acknowledger records the deliveries that are requeued.
type acknowledger struct {
	amqp091.Acknowledger

	tags []uint64
}

func (a *acknowledger) Nack(tag uint64, multiple, requeue bool) error {
	if multiple || !requeue {
		return errors.New("a buffered message is nacked alone, and requeued")
	}
	a.tags = append(a.tags, tag)
	return nil
}

// If a channel cannot be opened, the Subscriber logs the interruption once. The
// interruption ends only when a channel is open.
func TestFailureToReopenIsLoggedOnce(t *testing.T) {
	t.Parallel()
	logs := &testkit.Logs{}
	s := &Subscriber{cfg: SubscriberConfig{Logger: logs}, conn: &connection{amqp: &amqp091.Connection{}, timeout: time.Minute}}
	s.closing = t.Context()
	sub := &subscription{s: s, ctx: t.Context()}
	refused := errors.New("refused")
	for range 2 {
		ctx, lose := context.WithCancelCause(t.Context())
		o := &opening{consumeChannel: &consumeChannel{ctx: ctx, lose: lose}, done: make(chan struct{}), err: refused}
		close(o.done)
		sub.opening = o
		if ch := sub.reopen(); ch != nil || sub.opening != nil || !errors.Is(context.Cause(o.ctx), refused) {
			t.Errorf("got %v, the channel has ended with %v", ch, context.Cause(o.ctx))
		}
	}
	sub.running.Wait()
	if lines := logs.Lines(); len(lines) != 1 || logs.Count("ERROR RabbitMQ consumer interrupted, retrying", refused.Error()) != 1 {
		t.Errorf("got %q", lines)
	}
}
