package rabbit

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/rabbitmq/amqp091-go"

	"github.com/watermill-once/once/internal/test/kit"
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
			logs := &kit.Logs{}
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
	sub.retire(ch, errQueueDeleted)
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

func (a *acknowledger) Ack(uint64, bool) error { return nil }

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
	logs := &kit.Logs{}
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

// builder is a TopologyBuilder that returns the next of the given errors at each call,
// and records the arguments of the queue.
type builder struct {
	amqp.DefaultTopologyBuilder

	errs []error
	args []amqp091.Table
}

func (b *builder) BuildTopology(_ *amqp091.Channel, _, _ string, config amqp.Config, _ watermill.LoggerAdapter) error {
	b.args = append(b.args, config.Queue.Arguments)
	err := b.errs[0]
	b.errs = b.errs[1:]
	return err
}

func brokerConnection(t *testing.T) *connection {
	t.Helper()
	c, err := connect(t.Context(), amqp.ConnectionConfig{AmqpURI: kit.Rabbit(t).URL}, dialSettings{
		dialTimeout:  time.Minute,
		writeTimeout: time.Minute,
		nodes:        newNodes(nil),
	})
	kit.OK(t, err)
	t.Cleanup(func() { c.end(true) })
	return c
}

// A queue that would lose messages is first declared without a limit. If the queue exists
// with other arguments, the configured arguments are used. Any other refusal is an error.
func TestQueueIsDeclaredWithoutALimitIfTheBrokerAllowsIt(t *testing.T) {
	t.Parallel()
	c := brokerConnection(t)
	quorum := amqp091.Table{"x-queue-type": "quorum"}
	exists := &amqp091.Error{Code: amqp091.PreconditionFailed, Reason: "inequivalent arg", Server: true, Recover: true}
	failed := errors.New("at amqp://user:secret@host")
	for name, q := range map[string]struct {
		version   string
		errs      []error
		unlimited bool // the queue has no limit at the end
		fails     bool
	}{
		"a new queue":              {"4.0.5", []error{nil}, true, false},
		"a queue that exists":      {"4.0.5", []error{exists, nil}, false, false},
		"both are refused":         {"4.0.5", []error{exists, exists}, false, true},
		"another refusal":          {"4.0.5", []error{failed}, false, true},
		"an old broker":            {"3.13.7", []error{nil}, false, false},
		"an old broker refuses it": {"3.13.7", []error{failed}, false, true},
	} {
		c.amqp.Properties = amqp091.Table{"version": q.version}
		b := &builder{errs: q.errs}
		config := amqp.NewDurableQueueConfig("amqp://unused")
		config.Queue.Arguments, config.TopologyBuilder = quorum, b
		sub := &subscription{s: &Subscriber{config: config}, topic: "t"}
		err := sub.declare(c)
		if q.fails != (err != nil) {
			t.Errorf("%s: got %v", name, err)
		}
		if err != nil {
			refused, ok := errors.AsType[*topologyError](err)
			if !ok || !strings.HasPrefix(err.Error(), `rabbit: declare topology of topic "t": `) || strings.Contains(err.Error(), "secret") {
				t.Errorf("%s: got %v", name, err)
			}
			if want := q.errs[len(q.errs)-1]; want == exists && !errors.Is(refused, exists) { //nolint:errorlint // the same value
				t.Errorf("%s: it is not the broker's error", name)
			}
			continue
		}
		if _, ok := sub.arguments["x-delivery-limit"]; ok != q.unlimited || len(b.errs) != 0 {
			t.Errorf("%s: the queue has the arguments %v, %d declarations are missing", name, sub.arguments, len(b.errs))
		}
		if got := fmt.Sprint(b.args[len(b.args)-1]); got != fmt.Sprint(sub.arguments) {
			t.Errorf("%s: declared with %s, want %v", name, got, sub.arguments)
		}
	}
	for _, e := range []struct {
		err  error
		want bool
	}{
		{exists, true},
		{fmt.Errorf("declare: %w", exists), true},
		{failed, false},
		{&amqp091.Error{Code: amqp091.PreconditionFailed}, false},
		{&amqp091.Error{Code: amqp091.NotFound, Server: true}, false},
	} {
		if got := isPreconditionFailed(e.err); got != e.want {
			t.Errorf("isPreconditionFailed(%v) is %t", e.err, got)
		}
	}
}

// The broker sends no reply to a declaration with NoWait, but may refuse it. onChannel
// returns this refusal when it closes the channel.
func TestRefusalWithoutAReplyIsFound(t *testing.T) {
	t.Parallel()
	c := brokerConnection(t)
	failed := errors.New("failed")
	for name, q := range map[string]struct {
		f    func(channel *amqp091.Channel) error
		want string
	}{
		"fine":      {func(*amqp091.Channel) error { return nil }, ""},
		"its error": {func(*amqp091.Channel) error { return failed }, "failed"},
		"not waiting": {func(channel *amqp091.Channel) error {
			return channel.QueueBind("no-such-queue", "", "amq.fanout", true, nil)
		}, "NOT_FOUND"},
		"its error is first": {func(channel *amqp091.Channel) error {
			return errors.Join(failed, channel.QueueBind("no-such-queue", "", "amq.fanout", true, nil))
		}, "failed"},
	} {
		err := onChannel(c.amqp, q.f)
		if (err != nil) != (q.want != "") || err != nil && !strings.Contains(err.Error(), q.want) {
			t.Errorf("%s: got %v, want %q", name, err, q.want)
		}
	}
	c.end(true)
	if err := onChannel(c.amqp, func(*amqp091.Channel) error { t.Error("there is no channel"); return nil }); err == nil {
		t.Error("a lost connection is no error")
	}
}

// The pause after a nack depends on the number of earlier deliveries of the message,
// which the broker or the subscription has counted.
func TestPauseFollowsFromEarlierDeliveries(t *testing.T) {
	t.Parallel()
	s := &Subscriber{
		config: amqp.Config{Marshaler: Marshaler{}},
		cfg:    SubscriberConfig{Logger: watermill.NopLogger{}, NackMin: time.Millisecond, NackMax: time.Hour},
	}
	s.instruments = newSubscriberInstruments(s)
	sub := &subscription{consumed: func() {}, s: s, requeues: requeueCounts{"often": 9}}
	ch := &consumeChannel{ctx: t.Context()}
	for _, c := range []struct {
		id          string
		redelivered bool
		count       any
		want        time.Duration
		metadata    string
	}{
		{"new", false, nil, time.Millisecond, ""},
		{"new", false, int64(5), time.Millisecond, ""},
		{"new", true, nil, time.Millisecond, ""},
		{"new", true, int64(5), 32 * time.Millisecond, "5"},
		{"new", true, int64(-5), time.Millisecond, ""},
		{"new", true, int64(1 << 62), time.Hour, "4611686018427387904"},
		{"often", true, int64(5), 512 * time.Millisecond, "5"},
		{"often", true, int64(12), 4096 * time.Millisecond, "12"},
	} {
		raw := amqp091.Delivery{MessageId: c.id, Redelivered: c.redelivered, Headers: amqp091.Table{"x-delivery-count": c.count}}
		d := sub.decode(ch, raw)
		if d.pause > c.want || d.pause < c.want/2 {
			t.Errorf("%+v: the pause is %v", c, d.pause)
		}
		if got := d.msg.Metadata["once_delivery_count"]; got != c.metadata || d.msg.Metadata["once_redelivered"] != fmt.Sprint(c.redelivered) {
			t.Errorf("%+v: the metadata are %v", c, d.msg.Metadata)
		}
		if d.cancel(); d.msg.Context().Err() == nil {
			t.Errorf("%+v: the context does not end", c)
		}
	}
}

// panickingBuilder is a TopologyBuilder that panics.
type panickingBuilder struct{ amqp.DefaultTopologyBuilder }

func (*panickingBuilder) BuildTopology(*amqp091.Channel, string, string, amqp.Config, watermill.LoggerAdapter) error {
	panic("no topology")
}

// Trap 108. A TopologyBuilder is code of the user.
func TestTrap108_TopologyBuilderThatPanicsIsAnError(t *testing.T) {
	t.Parallel()
	config := amqp.NewDurableQueueConfig(kit.Rabbit(t).URL)
	config.TopologyBuilder = &panickingBuilder{}
	s, err := NewSubscriber(config, SubscriberConfig{Logger: kit.Logger(t)})
	kit.OK(t, err)
	defer s.Close()
	if _, err = s.Subscribe(t.Context(), "t"); err == nil || !strings.Contains(err.Error(), "the TopologyBuilder: panic: no topology") {
		t.Errorf("Subscribe returned %v", err)
	}
}

// A node that can serve keeps its subscribers, however often they check it. The checks take no
// message, and leave no consumer.
func TestANodeThatCanServeIsKept(t *testing.T) {
	t.Parallel()
	for name, arguments := range map[string]amqp091.Table{
		"classic":                {"x-queue-type": "classic"},
		"quorum":                 {"x-queue-type": "quorum"},
		"single active consumer": {"x-queue-type": "quorum", "x-single-active-consumer": true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			broker := kit.Rabbit(t)
			uri, err := amqp091.ParseURI(broker.URL)
			kit.OK(t, err)
			config := amqp.NewDurableQueueConfig(broker.URL)
			config.Marshaler, config.Queue.Arguments = Marshaler{}, arguments
			queue := broker.Name("q")
			s, err := NewSubscriber(config, SubscriberConfig{
				Nodes:         []string{fmt.Sprintf("127.0.0.1:%d", uri.Port), fmt.Sprintf("localhost:%d", uri.Port)},
				ReadyTimeout:  time.Minute,
				Logger:        kit.Logger(t),
				checkInterval: time.Millisecond,
			})
			kit.OK(t, err)
			defer s.Close()
			messages, err := s.Subscribe(t.Context(), queue)
			kit.OK(t, err)
			c := s.waitConnected(t.Context())
			channel, err := c.amqp.Channel()
			kit.OK(t, err)
			for n := range 20 {
				checks := c.activity.Load()
				kit.Eventually(t, time.Minute, "more checks", func() bool { return c.activity.Load() > checks+2 })
				id := strconv.Itoa(n)
				kit.OK(t, channel.PublishWithContext(t.Context(), "", queue, true, false, amqp091.Publishing{MessageId: id, Body: []byte(id)}))
				msg := <-messages
				if msg.UUID != id || msg.Metadata.Get("once_redelivered") != "false" {
					t.Errorf("got message %s with %v, want %s, delivered once", msg.UUID, msg.Metadata, id)
				}
				msg.Ack()
			}
			kit.Eventually(t, time.Minute, "one consumer is left", func() bool {
				found, err := channel.QueueDeclarePassive(queue, true, false, false, false, nil)
				kit.OK(t, err)
				return found.Consumers == 1
			})
			if s.waitConnected(t.Context()) != c {
				t.Error("the subscriber has left the node")
			}
		})
	}
}
