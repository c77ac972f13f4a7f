package rabbit

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/watermill-once/once/internal/testkit"
)

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
	c, err := connect(t.Context(), amqp.ConnectionConfig{AmqpURI: testkit.Rabbit(t).URL}, dialSettings{
		dialTimeout:  time.Minute,
		writeTimeout: time.Minute,
	})
	if err != nil {
		t.Fatal(err)
	}
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
		channel, err := c.amqp.Channel()
		if err != nil {
			t.Fatal(err)
		}
		err = sub.declare(c, channel)
		_ = channel.Close()
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
	sub := &subscription{s: s, requeues: requeueCounts{"often": 9}}
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
