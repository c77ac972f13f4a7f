package rabbit_test

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/rabbit"
)

// undeclared is a topology builder that declares nothing.
type undeclared struct{ amqp.DefaultTopologyBuilder }

func (undeclared) ExchangeDeclare(*amqp091.Channel, string, amqp.Config) error { return nil }

func TestTrap09_MissingExchangeIsRefusedOnlyAlone(t *testing.T) {
	uri := brokerURL(t)
	config := topicConfig(uri)
	config.TopologyBuilder = &undeclared{}
	p := newPublisher(t, config, rabbit.PublisherConfig{})

	good, missing := uniqueName("good"), uniqueName("missing")
	bind(t, uri, good)
	var all outcomes
	for _, msg := range numbered("good", 20) {
		all.publish(p, good, msg)
	}
	all.publish(p, missing, newMessage("bad"))
	for _, msg := range numbered("later", 20) {
		all.publish(p, good, msg)
	}
	for id, err := range all.wait(t) {
		if got := outcomeOf(err); got != "unknown" && got != "confirmed" {
			t.Errorf("%s is %s (%v); the close must not be attributed to it", id, got, err)
		}
	}

	err := p.Publish(missing, newMessage("bad"))
	mustBe(t, "refused", err)
	mustHaveCode(t, amqp091.NotFound, err)

	bind(t, uri, missing)
	mustBe(t, "confirmed", p.Publish(missing, newMessage("bad")))
}

// Messages without an order use several channels. If the broker closes one of them, only
// messages of this channel have an unknown outcome.
func TestTrap09_CloseAffectsOneOfSeveralChannels(t *testing.T) {
	uri := brokerURL(t)
	config := topicConfig(uri)
	config.TopologyBuilder = &undeclared{}
	p := newPublisher(t, config, rabbit.PublisherConfig{})
	good, missing := uniqueName("good"), uniqueName("missing")
	queue := bind(t, uri, good)
	kit.Eventually(t, time.Minute, "all channels are open", func() bool {
		var first outcomes
		first.publishUnordered(p, good, newMessage("first"))
		mustBe(t, "confirmed", first.wait(t)["first"])
		return rabbit.CurrentChannels(p) == 4
	})

	const messages = 400
	var all outcomes
	for i, msg := range numbered("m", messages) {
		topic := good
		if i == messages/2 {
			topic = missing
		}
		all.publishUnordered(p, topic, msg)
	}
	unknown := 0
	for id, err := range all.wait(t) {
		switch got := outcomeOf(err); {
		case got == "unknown":
			unknown++
		case got != "confirmed" && id != "m200":
			t.Errorf("%s is %s (%v)", id, got, err)
		}
	}
	if unknown > messages/4 {
		t.Errorf("the outcome of %d of %d messages is unknown, want at most a quarter", unknown, messages)
	}
	if n := len(drain(t, uri, queue)); n < messages-1-unknown {
		t.Errorf("%d messages are in the queue, and the outcome of %d is unknown", n, unknown)
	}
	kit.Eventually(t, time.Minute, "the closed channel is replaced", func() bool { return rabbit.CurrentChannels(p) == 4 })
}

// To declare an exchange, amqp091 opens a channel with any number that it may use. So a
// confirm channel must have a number that amqp091 may not use. Otherwise the broker
// would close the connection.
func TestMoreExchangesThanChannels(t *testing.T) {
	kit.Long(t)
	t.Parallel()
	uri := brokerURL(t)
	topics := make([]string, 12)
	for i := range topics {
		topics[i] = uniqueName("t")
		bind(t, uri, topics[i])
	}
	other := uniqueName("t")
	kit.OK(t, admin(t, uri).ExchangeDeclare(other, "direct", true, false, false, false, nil))
	for _, most := range []uint16{2, 3, 8} {
		for name, declare := range map[string]func(p *rabbit.Publisher){
			"one after another": func(p *rabbit.Publisher) {
				for _, topic := range topics {
					mustBe(t, "confirmed", p.Publish(topic, newMessage("m")))
				}
			},
			"at once": func(p *rabbit.Publisher) {
				var all sync.WaitGroup
				for _, topic := range topics {
					all.Go(func() {
						kit.Check(t, p.Publish(topic, newMessage("m")))
					})
				}
				all.Wait()
			},
			"refused": func(p *rabbit.Publisher) {
				for range topics {
					mustBe(t, "refused", p.Publish(other, newMessage("m")))
				}
				mustBe(t, "confirmed", p.Publish(topics[0], newMessage("m")))
			},
		} {
			t.Run(fmt.Sprintf("%d channels, %s", most, name), func(t *testing.T) {
				h := new(heard)
				config := topicConfig(uri)
				config.Connection.AmqpConfig = &amqp091.Config{ChannelMax: most}
				declare(newPublisher(t, config, rabbit.PublisherConfig{Logger: h}))
				mustHaveConnectedOnce(t, h)
			})
		}
	}
}

// counted is a topology builder that declares the same as watermill-amqp, and counts the
// calls.
type counted struct {
	amqp.DefaultTopologyBuilder
	calls atomic.Int64
}

func (c *counted) ExchangeDeclare(channel *amqp091.Channel, name string, config amqp.Config) error {
	c.calls.Add(1)
	return c.DefaultTopologyBuilder.ExchangeDeclare(channel, name, config)
}

func TestExchangeIsDeclaredOnceAndAgainAfterItsDeletion(t *testing.T) {
	uri := brokerURL(t)
	config := topicConfig(uri)
	builder := new(counted)
	config.TopologyBuilder = builder
	p := newPublisher(t, config, rabbit.PublisherConfig{})

	topic := uniqueName("t")
	queue := bind(t, uri, topic)
	var all outcomes
	for _, msg := range numbered("m", 100) {
		all.publish(p, topic, msg)
	}
	all.wait(t)
	if n := builder.calls.Load(); n != 1 {
		t.Errorf("declared %d times, want once", n)
	}

	channel := admin(t, uri)
	kit.OK(t, channel.ExchangeDelete(topic, false, false))
	err := p.Publish(topic, newMessage("while-gone"))
	mustBe(t, "refused", err)
	mustHaveCode(t, amqp091.NotFound, err)
	err = p.Publish(topic, newMessage("declared-again"))
	if !errors.Is(err, rabbit.ErrReturned) {
		t.Errorf("got %v, want returned: the exchange exists again without bindings", err)
	}
	kit.OK(t, channel.QueueBind(queue, "", topic, false, nil))
	mustBe(t, "confirmed", p.Publish(topic, newMessage("bound-again")))
	if n := builder.calls.Load(); n != 2 {
		t.Errorf("declared %d times, want twice", n)
	}
}

// If an exchange exists with other arguments, only the messages to this exchange are
// refused. Messages to other exchanges are confirmed.
func TestFailedDeclarationIsRefused(t *testing.T) {
	uri := brokerURL(t)
	good, other := uniqueName("good"), uniqueName("other")
	bind(t, uri, good)
	channel := admin(t, uri)
	kit.OK(t, channel.ExchangeDeclare(other, "direct", true, false, false, false, nil))
	t.Cleanup(func() { _ = channel.ExchangeDelete(other, false, false) })

	for _, noWait := range []bool{false, true} {
		config := topicConfig(uri)
		config.Exchange.NoWait = noWait
		p := newPublisher(t, config, rabbit.PublisherConfig{})
		var all outcomes
		for _, msg := range numbered("good", 100) {
			all.publish(p, good, msg)
		}
		all.publish(p, other, newMessage("bad"))
		for id, err := range all.wait(t) {
			if id != "bad" && err != nil {
				t.Errorf("%s: %v", id, err)
			}
		}
		mustBe(t, "refused", all.errs["bad"])
		mustHaveCode(t, amqp091.PreconditionFailed, all.errs["bad"])
	}
}

// mistyped is a topology builder that declares one exchange with an unknown type. If fatal
// is true, the broker then also closes the connection, as RabbitMQ 3.10 does by itself.
type mistyped struct {
	amqp.DefaultTopologyBuilder

	exchange string
	fatal    bool
}

func (m mistyped) ExchangeDeclare(channel *amqp091.Channel, name string, config amqp.Config) error {
	if name == m.exchange && m.fatal {
		return channel.Qos(0, 1, false) // 540, with all versions of RabbitMQ
	}
	if name == m.exchange {
		config.Exchange.Type = "no-such-type"
	}
	return m.DefaultTopologyBuilder.ExchangeDeclare(channel, name, config)
}

// Trap 105. If the exchange type is unknown, RabbitMQ 3.10 closes the connection, and
// RabbitMQ 4.3 the channel. The message is refused. Later declarations of this exchange
// leave the Publisher its connection.
func TestTrap105_UnknownExchangeTypeIsRefused(t *testing.T) {
	uri := brokerURL(t)
	for _, c := range []struct{ noWait, fatal bool }{{false, false}, {true, false}, {false, true}} {
		h, bad, good := new(heard), uniqueName("bad"), uniqueName("good")
		bind(t, uri, good)
		config := topicConfig(uri)
		config.Exchange.NoWait = c.noWait
		config.TopologyBuilder = &mistyped{exchange: bad, fatal: c.fatal}
		p := newPublisher(t, config, rabbit.PublisherConfig{Logger: h})
		connections := 2
		for range 3 {
			err := p.Publish(bad, newMessage("m"))
			mustBe(t, "refused", err)
			code := amqp091.NotImplemented
			if refused, ok := errors.AsType[*rabbit.PublishError](err); ok && !c.fatal {
				if code = amqp091.CommandInvalid; refused.Code == amqp091.PreconditionFailed { // RabbitMQ 4.3
					code, connections = amqp091.PreconditionFailed, 1
				}
			}
			mustHaveCode(t, code, err)
			mustBe(t, "confirmed", p.Publish(good, newMessage("m")))
		}
		if n := h.said(connectedLine); n != connections {
			t.Errorf("connected %d times, want %d: %q", n, connections, h.all())
		}
	}
}

// onlyItsTopicWaits publishes to bad, whose exchange cannot be declared for the reason, and to good.
func onlyItsTopicWaits(t *testing.T, p *rabbit.Publisher, bad, good, reason string) {
	t.Helper()
	for range 3 {
		err := p.Publish(bad, newMessage("m"))
		mustBe(t, "unavailable", err)
		if e, ok := errors.AsType[*rabbit.PublishError](err); !ok || !e.OneTopic() || !strings.Contains(e.Reason, reason) {
			t.Errorf("got %v, want an outage of one topic: %s", err, reason)
		}
		mustBe(t, "confirmed", p.Publish(good, newMessage("m")))
	}
}

// If such an exchange gets no connection of its own, the Publisher keeps its connection,
// and its topic waits.
func TestExchangeThatGetsNoConnectionLeavesOthersAlone(t *testing.T) {
	kit.Long(t)
	t.Parallel()
	broker := kit.Rabbit(t)
	h, bad, good := new(heard), uniqueName("bad"), uniqueName("good")
	bind(t, broker.URL, good)
	config := topicConfig(broker.URL)
	config.TopologyBuilder = &mistyped{exchange: bad, fatal: true}
	p := newPublisher(t, config, rabbit.PublisherConfig{Logger: h})
	mustBe(t, "refused", p.Publish(bad, newMessage("m")))
	mustBe(t, "confirmed", p.Publish(good, newMessage("m")))
	before := h.said(connectedLine)

	broker.Ctl(t, "set_vhost_limits", "--vhost", broker.VHost, `{"max-connections": 0}`)
	onlyItsTopicWaits(t, p, bad, good, "")
	if n := h.said(connectedLine); n != before {
		t.Errorf("connected %d more times: %q", n-before, h.all())
	}
	broker.Ctl(t, "clear_vhost_limits", "--vhost", broker.VHost)
	mustBe(t, "refused", p.Publish(bad, newMessage("m")))
}

// unanswered is a topology builder that waits until the channel is closed or it is released, as if
// the broker did not answer the declaration of one exchange.
type unanswered struct {
	amqp.DefaultTopologyBuilder

	exchange string
	asked    chan struct{}
	answer   chan struct{}
	ended    atomic.Bool
}

func (u *unanswered) ExchangeDeclare(channel *amqp091.Channel, name string, config amqp.Config) error {
	if name == u.exchange {
		u.asked <- struct{}{}
		select {
		case <-u.answer:
		case reason := <-channel.NotifyClose(make(chan *amqp091.Error, 1)):
			<-time.After(100 * time.Millisecond) // Close must wait for this
			u.ended.Store(true)
			return fmt.Errorf("%w: %v", amqp091.ErrClosed, reason) //nolint:errorlint // it may be nil
		}
	}
	return u.DefaultTopologyBuilder.ExchangeDeclare(channel, name, config)
}

// Trap 105. An exchange whose declaration is not answered, for example because the broker's
// metadata store has lost its majority, leaves the Publisher its connection. Its topic waits. If
// there is another node, the Publisher tries that one once.
func TestTrap105_UnansweredDeclarationLeavesOthersAlone(t *testing.T) {
	for _, nodes := range [][]string{nil, {"localhost"}} {
		declareWithoutAnswer(t, brokerURL(t), nodes)
	}
}

func declareWithoutAnswer(t *testing.T, uri string, nodes []string) {
	t.Helper()
	h, bad, good := new(heard), uniqueName("bad"), uniqueName("good")
	bind(t, uri, bad)
	bind(t, uri, good)
	config := topicConfig(uri)
	u := &unanswered{exchange: bad, asked: make(chan struct{}, 10), answer: make(chan struct{})}
	config.TopologyBuilder = u
	p := newPublisher(t, config, rabbit.PublisherConfig{Logger: h, DialTimeout: time.Second, Nodes: nodes})
	connections := 1 + len(nodes)
	onlyItsTopicWaits(t, p, bad, good, "no reply within 1s")
	close(u.answer)
	eventually(t, "the exchange is declared", func() bool { return p.Publish(bad, newMessage("m")) == nil })
	if n := h.said(connectedLine); n != connections {
		t.Errorf("connected %d times, want %d: %q", n, connections, h.all())
	}
}

// Close does not wait for the answer, but for the end of the declaration.
func TestCloseEndsAnUnansweredDeclaration(t *testing.T) {
	config := topicConfig(brokerURL(t))
	u := &unanswered{exchange: "x", asked: make(chan struct{}, 1)}
	config.TopologyBuilder = u
	p := newPublisher(t, config, rabbit.PublisherConfig{})
	published := make(chan error, 1)
	go func() { published <- p.Publish("x", newMessage("m")) }()
	<-u.asked
	kit.OK(t, p.Close())
	if !u.ended.Load() {
		t.Error("the declaration still runs")
	}
	if err := <-published; !errors.Is(err, rabbit.ErrClosed) {
		t.Errorf("got %v, want ErrClosed", err)
	}
}

// lost is a topology builder for an exchange whose first declarations make the broker close the
// connection. Later ones lose their connection.
type lost struct {
	mistyped

	calls atomic.Int64
}

func (l *lost) ExchangeDeclare(channel *amqp091.Channel, name string, config amqp.Config) error {
	if name == l.exchange && l.calls.Add(1) > 2 { // the first two are on the shared connection and on one of its own
		return amqp091.ErrClosed
	}
	return l.mistyped.ExchangeDeclare(channel, name, config)
}

func TestExchangeThatLosesItsConnectionLeavesOthersAlone(t *testing.T) {
	uri := brokerURL(t)
	h, bad, good := new(heard), uniqueName("bad"), uniqueName("good")
	bind(t, uri, good)
	config := topicConfig(uri)
	config.TopologyBuilder = &lost{mistyped: mistyped{exchange: bad, fatal: true}}
	p := newPublisher(t, config, rabbit.PublisherConfig{Logger: h})
	mustBe(t, "refused", p.Publish(bad, newMessage("m")))
	mustBe(t, "confirmed", p.Publish(good, newMessage("m")))
	before := h.said(connectedLine)
	onlyItsTopicWaits(t, p, bad, good, "")
	if n := h.said(connectedLine); n != before {
		t.Errorf("connected %d more times: %q", n-before, h.all())
	}
}

type failing struct{ amqp.DefaultTopologyBuilder }

func (failing) ExchangeDeclare(*amqp091.Channel, string, amqp.Config) error {
	return errors.New("see amqp://user:secret@host/vhost")
}

func TestErrorOfATopologyBuilderIsRefused(t *testing.T) {
	uri := brokerURL(t)
	config := topicConfig(uri)
	config.TopologyBuilder = &failing{}
	p := newPublisher(t, config, rabbit.PublisherConfig{})
	mustBe(t, "refused", p.Publish(uniqueName("t"), newMessage("m")))
}

type panicking struct{ amqp.DefaultTopologyBuilder }

func (panicking) ExchangeDeclare(*amqp091.Channel, string, amqp.Config) error { panic("boom") }

// If a TopologyBuilder panics, the message is refused. The TopologyBuilder runs while
// Publisher.mu is unlocked. If its panic reached send, the deferred Unlock in send
// would unlock the mutex a second time, and Go would end the process.
func TestPanicOfATopologyBuilderIsRefused(t *testing.T) {
	t.Parallel()
	config := topicConfig(brokerURL(t))
	config.TopologyBuilder = &panicking{}
	p := newPublisher(t, config, rabbit.PublisherConfig{})
	mustBe(t, "refused", p.Publish(uniqueName("t"), newMessage("m")))
	mustBe(t, "refused", p.Publish(uniqueName("t"), newMessage("m")))
}
