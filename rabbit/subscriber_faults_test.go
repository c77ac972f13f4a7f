package rabbit_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/rabbitmq/amqp091-go"

	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/rabbit"
)

// said returns the number of log lines that begin with prefix.
func (h *heard) said(prefix string) int {
	n := 0
	for _, line := range h.all() {
		if strings.HasPrefix(line, prefix) {
			n++
		}
	}
	return n
}

func TestTrap44_QueueIsDeletedAndDeclaredAgain(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"classic", "quorum"} {
		t.Run(kind, func(t *testing.T) {
			uri := brokerURL(t)
			queue := uniqueName("q")
			h := new(heard)
			cfg := brisk
			cfg.Logger = h
			config := queueConfig(uri)
			config.Queue.Arguments = amqp091.Table{"x-queue-type": kind}
			messages := subscribe(t, newSubscriber(t, config, cfg), queue)
			channel := admin(t, uri)
			for i := range 3 {
				kit.OK(t, kit.Err(channel.QueueDelete(queue, false, false, false)))
				id := fmt.Sprint("m", i)
				eventually(t, "the queue exists again", func() bool { return depth(t, uri, queue) >= 0 })
				eventually(t, "it takes a message", func() bool { return unconfirmed(t, uri, queue, id) == "" })
				msg := receive(t, messages) // receive fails on an empty message
				if msg.UUID != id {
					t.Errorf("got %s, want %s", msg.UUID, id)
				}
				msg.Ack()
			}
			if lost, on := h.said(interruptedLine), h.said(consumingLine); lost != 3 || on != 4 {
				t.Errorf("logged: interrupted %d times, started %d times: %q", lost, on, h.all())
			}
		})
	}
}

// Trap 44. If the broker cancels a consumer while a message is being handled, the
// message can still be acked. The channel is closed after the ack.
func TestTrap44_CancelledConsumerKeepsMessagesInFlight(t *testing.T) {
	t.Parallel()
	uri := brokerURL(t)
	queue := declareQueue(t, uri, nil)
	cfg := brisk
	cfg.InFlight = 2
	config := queueConfig(uri)
	config.Connection.AmqpConfig = &amqp091.Config{ChannelMax: 2}
	s := newSubscriber(t, config, cfg)
	messages := subscribe(t, s, queue)
	channel := admin(t, uri)
	for range 3 {
		send(t, uri, queue, "a")
		held := receive(t, messages)
		kit.OK(t, kit.Err(channel.QueueDelete(queue, false, false, false)))
		eventually(t, "the queue exists again", func() bool { return depth(t, uri, queue) >= 0 })
		send(t, uri, queue, "b")
		receive(t, messages).Ack()
		if err := held.Context().Err(); err != nil {
			t.Errorf("the handler was cancelled: %v", err)
		}
		held.Ack()
		finished(t, "the ack is sent", held.Context().Done())
		send(t, uri, queue, "c")
		receive(t, messages).Ack()
	}
}

func TestTrap45_AcksOfALostConnectionAreNotSent(t *testing.T) {
	t.Parallel()
	broker := kit.Rabbit(t)
	queue := declareQueue(t, broker.URL, nil)
	h := new(heard)
	cfg := brisk
	cfg.InFlight = 4
	cfg.Logger = h
	s := newSubscriber(t, queueConfig(broker.URL), cfg)
	messages := subscribe(t, s, queue)
	send(t, broker.URL, queue, "a", "b")
	old := []*message.Message{receive(t, messages), receive(t, messages)}

	broker.CloseConnections(t, "test")
	for _, msg := range old {
		finished(t, "the context of a message that cannot be acked ends", msg.Context().Done())
	}
	eventually(t, "the new channel has the messages", func() bool { return depth(t, broker.URL, queue) == 0 })
	nothing(t, messages) // the handlers of the old deliveries still run
	// Both channels number their deliveries 1 and 2. If the acks of the old deliveries
	// were sent on the new channel, they would ack the new deliveries or close the
	// channel.
	for _, msg := range old {
		msg.Ack()
	}
	again := []*message.Message{receive(t, messages), receive(t, messages)}
	for _, msg := range again {
		if msg.Metadata.Get("once_redelivered") != "true" {
			t.Errorf("%s is not redelivered", msg.UUID)
		}
	}
	send(t, broker.URL, queue, "c")
	receive(t, messages).Ack()
	broker.CloseConnections(t, "test")
	for _, msg := range again {
		finished(t, "the connection is lost again", msg.Context().Done())
		msg.Ack()
	}
	receive(t, messages).Ack()
	receive(t, messages).Ack()
	kit.Check(t, s.Close())
	if left := drain(t, broker.URL, queue); len(left) != 0 {
		t.Errorf("left in the queue: %v", left)
	}
	for _, line := range h.all() {
		if strings.Contains(line, "(406)") || strings.Contains(line, "PRECONDITION") || strings.Contains(line, "guest:guest") {
			t.Error(line)
		}
	}
	if n := h.said(lostLine); n != 2 {
		t.Errorf("two losses were logged %d times: %q", n, h.all())
	}
}

// Messages that are being handled count towards InFlight even after their connection
// was lost. Otherwise the subscription would start more handlers after each lost
// connection, although the earlier handlers are stuck.
func TestInFlightIsBoundedAcrossConnections(t *testing.T) {
	t.Parallel()
	broker := kit.Rabbit(t)
	queue := declareQueue(t, broker.URL, nil)
	cfg := brisk
	cfg.InFlight = 2
	messages := subscribe(t, newSubscriber(t, queueConfig(broker.URL), cfg), queue)
	send(t, broker.URL, queue, "a", "b")
	stuck := []*message.Message{receive(t, messages), receive(t, messages)}
	broker.CloseConnections(t, "test")
	finished(t, "the connection is lost", stuck[0].Context().Done())
	nothing(t, messages)
	stuck[1].Nack()
	again := receive(t, messages)
	if again.UUID != stuck[1].UUID {
		t.Errorf("message %s is delivered while its first call runs", again.UUID)
	}
	again.Ack()
	stuck[0].Ack()
	receive(t, messages).Ack()
}

func TestTrap46_ConsumerTimeoutIsSurvived(t *testing.T) {
	kit.Long(t)
	t.Parallel()
	broker := kit.PrivateRabbitInTurn(t)
	if version, err := broker.Eval(t.Context(), "rabbit_misc:version()"); err != nil {
		t.Fatal(err)
	} else if version >= `"4.3` {
		t.Skip("since RabbitMQ 4.3, classic queues have no consumer timeout")
	}
	limit := func(timeout, tick time.Duration) { // tick is the interval at which the broker checks the timeout
		eval(t, broker, fmt.Sprintf("application:set_env(rabbit, consumer_timeout, %d), application:set_env(rabbit, channel_tick_interval, %d)",
			timeout.Milliseconds(), tick.Milliseconds()))
	}
	limit(time.Second, 500*time.Millisecond)
	defer limit(30*time.Minute, time.Minute) // restores the defaults
	queue := declareQueue(t, broker.URL("/"), nil)
	h := new(heard)
	cfg := brisk
	cfg.InFlight = 2
	cfg.Logger = h
	messages := subscribe(t, newSubscriber(t, queueConfig(broker.URL("/")), cfg), queue)
	send(t, broker.URL("/"), queue, "slow")
	slow := receive(t, messages)
	finished(t, "the broker closes the channel under it", slow.Context().Done())
	slow.Ack()
	again := receive(t, messages)
	if again.UUID != "slow" || again.Metadata.Get("once_redelivered") != "true" {
		t.Errorf("got %+v", again)
	}
	again.Ack()
	send(t, broker.URL("/"), queue, "next")
	receive(t, messages).Ack()
	if n := h.said(interruptedLine); n == 0 {
		t.Errorf("logged: %q", h.all())
	}
}

func TestTrap46_LimitsOfTheBrokerAreReportedAtTheStart(t *testing.T) {
	uri := brokerURL(t)
	for _, c := range []struct {
		args  amqp091.Table
		lines []string
	}{
		{amqp091.Table{"x-queue-type": "quorum", "x-delivery-limit": int32(3)}, []string{dropsLine}},
		{
			amqp091.Table{"x-queue-type": "quorum", "x-delivery-limit": int32(3), "x-dead-letter-exchange": ""},
			[]string{"Queue limit dead-letters"},
		},
		{amqp091.Table{"x-queue-type": "quorum"}, nil}, // RabbitMQ 3.10 has no default limit
		{nil, nil},
	} {
		h := new(heard)
		cfg := brisk
		cfg.Logger = h
		config := queueConfig(uri)
		config.Queue.Arguments = c.args
		s := newSubscriber(t, config, cfg)
		subscribe(t, s, uniqueName("q"))
		kit.Check(t, s.Close())
		if n := h.said("Queue limit") + h.said(timeoutLine); n != len(c.lines) {
			t.Errorf("%v: %q", c.args, h.all())
		}
		for _, line := range c.lines {
			if h.said(line) != 1 {
				t.Errorf("%v: %q", c.args, h.all())
			}
		}
	}

	// A prefetched message first waits for the messages in flight. Then it may be in
	// flight itself for the same time.
	for _, c := range []struct {
		inFlight int
		timeout  time.Duration
		reported int
	}{{1, 10 * time.Minute, 1}, {1, 11 * time.Minute, 0}, {2, 20 * time.Minute, 1}, {2, 21 * time.Minute, 0}} {
		h := new(heard)
		cfg, config := brisk, queueConfig(uri)
		cfg.Logger, cfg.InFlight = h, c.inFlight
		config.Queue.Arguments = amqp091.Table{"x-queue-type": "quorum"} // RabbitMQ 4.3 has no timeout for classic queues
		config.Consume.Arguments = amqp091.Table{"x-consumer-timeout": c.timeout.Milliseconds()}
		subscribe(t, newSubscriber(t, config, cfg), uniqueName("q"))
		if h.said(timeoutLine) != c.reported {
			t.Errorf("%d in flight, consumer timeout %v: %q", c.inFlight, c.timeout, h.all())
		}
	}
}

func TestBrokerIsKilledUnderConsumers(t *testing.T) {
	kit.Long(t) // not needed in make test, because tests/ also kills a broker there
	t.Parallel()
	broker := kit.PrivateRabbitInTurn(t)
	uri := broker.URL("/")
	queue := declareQueue(t, uri, nil)
	h := new(heard)
	cfg := brisk
	cfg.Logger = h
	s := newSubscriber(t, queueConfig(uri), cfg)
	messages := subscribe(t, s, queue)
	p := newPublisher(t, queueConfig(uri), rabbit.PublisherConfig{})
	const n = 2000
	mustBe(t, "confirmed", p.Publish(queue, numbered("m", n)...))
	write(t, broker)
	held := receive(t, messages)
	work := handle(messages)
	eventually(t, "some are handled", func() bool { return work.ids() > 20 })
	broker.Kill()
	restart(t, broker)
	held.Ack()
	eventually(t, "all are handled", func() bool { return work.ids() == n })
	if work.of(held.UUID) == 0 {
		t.Error("the message that was in flight during the restart was not delivered again")
	}
	if lost := h.said(lostLine); lost != 1 {
		t.Errorf("the loss was logged %d times: %q", lost, h.all())
	}
	kit.Check(t, s.Close())
	finished(t, "the subscription ends", work.ended)
}

func TestTrap75_CloseOfASubscriberWithAFrozenBroker(t *testing.T) {
	kit.Long(t)
	t.Parallel()
	broker := kit.PrivateRabbitInTurn(t)
	queue := declareQueue(t, broker.URL("/"), nil)
	cfg := brisk
	cfg.CloseTimeout = 500 * time.Millisecond
	cfg.DialTimeout = time.Second
	s := newSubscriber(t, queueConfig(broker.URL("/")), cfg)
	messages := subscribe(t, s, queue)
	send(t, broker.URL("/"), queue, "a")
	receive(t, messages).Ack()
	broker.Freeze()
	defer broker.Thaw()
	closesSoon(t, s, messages)
}

func TestTrap60_NoCredentialsInWhatASubscriberLogs(t *testing.T) {
	h := new(heard)
	s := newSubscriber(t, queueConfig("amqp://someone:secret@127.0.0.1:"+closedPort), rabbit.SubscriberConfig{
		ReadyTimeout: time.Millisecond, Logger: h,
	})
	subscribe(t, s, "q")
	eventually(t, "the first attempt has failed", func() bool { return h.said(lostLine) == 1 })
	kit.Check(t, s.Close())
	config := queueConfig(brokerURL(t))
	config.TopologyBuilder = &telltale{}
	s = newSubscriber(t, config, rabbit.SubscriberConfig{Logger: h})
	_, err := s.Subscribe(t.Context(), "q")
	initErr := s.SubscribeInitialize("q")
	if err == nil || initErr == nil {
		t.Errorf("errors %v, %v", err, initErr)
	}
	for _, line := range append(h.all(), fmt.Sprint(err, initErr)) {
		if strings.Contains(line, "secret") {
			t.Error(line)
		}
	}
}

// telltale is a topology builder that returns an error with a password.
type telltale struct{ amqp.DefaultTopologyBuilder }

func (telltale) BuildTopology(*amqp091.Channel, string, string, amqp.Config, watermill.LoggerAdapter) error {
	return errors.New("see amqp://user:secret@host/vhost")
}

// hopeless is a topology builder that always fails.
type hopeless struct{ amqp.DefaultTopologyBuilder }

func (hopeless) BuildTopology(*amqp091.Channel, string, string, amqp.Config, watermill.LoggerAdapter) error {
	return errors.New("no")
}

// If the topology cannot be declared, the channel is closed. Otherwise open channels
// would accumulate.
func TestChannelWithoutATopologyIsClosed(t *testing.T) {
	w := newTap(t, brokerURL(t))
	config := queueConfig(w.tapped)
	config.TopologyBuilder = &hopeless{}
	s := newSubscriber(t, config, brisk)
	const failures = 4
	for range failures {
		if _, err := s.Subscribe(context.WithoutCancel(t.Context()), "q"); err == nil {
			t.Fatal("subscribed without a topology")
		}
	}
	eventually(t, "the channels are closed", func() bool { return w.closesOfChannels() == failures })
}

// moody refuses to declare a topology as often as refusals says. Then it declares it.
type moody struct {
	amqp.DefaultTopologyBuilder

	refusals atomic.Int32
}

func (m *moody) BuildTopology(c *amqp091.Channel, queue, exchange string, config amqp.Config, l watermill.LoggerAdapter) error {
	if m.refusals.Add(-1) >= 0 {
		return errors.New("not now")
	}
	return m.DefaultTopologyBuilder.BuildTopology(c, queue, exchange, config, l)
}

// A subscription that could open its first channel must continue, even if a later channel
// cannot be opened several times.
func TestSubscriptionContinuesAfterFailuresToReopen(t *testing.T) {
	t.Parallel()
	uri := brokerURL(t)
	queue, topology := uniqueName("q"), new(moody)
	config := queueConfig(uri)
	config.TopologyBuilder = topology
	messages := subscribe(t, newSubscriber(t, config, brisk), queue)
	topology.refusals.Store(2)
	kit.OK(t, kit.Err(admin(t, uri).QueueDelete(queue, false, false, false)))
	eventually(t, "the queue exists again", func() bool { return depth(t, uri, queue) >= 0 })
	eventually(t, "it takes a message", func() bool { return unconfirmed(t, uri, queue, "m") == "" })
	msg := receive(t, messages)
	if msg.UUID != "m" || topology.refusals.Load() >= 0 {
		t.Errorf("got %s after %d refusals", msg.UUID, 2-topology.refusals.Load())
	}
	msg.Ack()
}

// Trap 97. Since RabbitMQ 4.0, a quorum queue without arguments drops a message after 20
// deliveries. A queue that the Subscriber declares does not drop messages. If the queue
// was declared earlier without x-delivery-limit, the Subscriber can only log the limit.
func TestTrap97_RequeuedMessagesAreNotDropped(t *testing.T) {
	kit.Long(t)
	t.Parallel()
	broker := kit.PrivateRabbitOf(t, "4.0")
	cfg := brisk
	cfg.NackMin, cfg.NackMax = time.Millisecond, time.Millisecond
	returns := func(uri string, config amqp.Config, queue string) *heard {
		h := new(heard)
		cfg.Logger = h
		s := newSubscriber(t, config, cfg)
		kit.OK(t, s.SubscribeInitialize(queue))
		messages := subscribe(t, s, queue)
		send(t, uri, queue, "m")
		for range 22 {
			receive(t, messages).Nack()
		}
		receive(t, messages).Ack()
		kit.Check(t, s.Close())
		return h
	}
	ctl := func(args ...string) {
		t.Helper()
		kit.OK(t, kit.Err(broker.Ctl(t.Context(), args...)))
	}
	for vhost, args := range map[string]amqp091.Table{
		"/": {"x-queue-type": "quorum"}, "quorum": nil, // the type comes from the virtual host
	} {
		uri := broker.URL(vhost)
		if vhost != "/" {
			ctl("add_vhost", vhost, "--default-queue-type", "quorum")
			ctl("set_permissions", "--vhost", vhost, "guest", ".*", ".*", ".*")
		}
		config := queueConfig(uri)
		config.Queue.Arguments = args
		if h := returns(uri, config, "new"); h.said(dropsLine) != 0 {
			t.Errorf("%s: the limit is logged: %q", vhost, h.all())
		}
		if vhost == "/" {
			returns(uri, config, "new") // the queue exists now
		}

		// This queue was declared before the upgrade, without a limit.
		older := declareQueue(t, uri, args)
		ctl("set_policy", "--vhost", vhost, "no-limit", "^"+older+"$", `{"delivery-limit":-1}`, "--apply-to", "queues")
		h := returns(uri, config, older) // the queue has the policy that the log line names
		if h.said(dropsLine) != 1 || !strings.Contains(strings.Join(h.all(), ""), `'{"delivery-limit":-1}' --apply-to queues`) {
			t.Errorf("%s: the limit is not logged: %q", vhost, h.all())
		}
	}
}
