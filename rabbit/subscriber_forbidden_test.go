package rabbit_test

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/rabbitmq/amqp091-go"

	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/rabbit"
)

// user is a user of the broker. It is also the login of a client.
type user struct {
	t      *testing.T
	broker kit.Broker
	name   atomic.Pointer[string]
}

func (*user) Mechanism() string { return "PLAIN" }

func (u *user) Response() string {
	return (&amqp091.PlainAuth{Username: *u.name.Load(), Password: "s3cret"}).Response()
}

// rights are the names that a user may configure, write and read.
type rights struct{ configure, write, read string }

// newUsers adds a user for each of the given rights. The caller must defer remove.
func newUsers(t *testing.T, broker kit.Broker, all ...rights) (users []*user, remove func()) {
	t.Helper()
	var add, drop strings.Builder
	for _, r := range all {
		u, name := &user{t: t, broker: broker}, broker.Name("user")
		u.name.Store(&name)
		users = append(users, u)
		fmt.Fprintf(&add, `ok = rabbit_auth_backend_internal:add_user(<<"%s">>, <<"s3cret">>, <<"test">>), %s, `, name, u.granting(r))
		fmt.Fprintf(&drop, `rabbit_auth_backend_internal:delete_user(<<"%s">>, <<"test">>), `, name)
	}
	broker.Eval(t, add.String()+"ok")
	return users, func() { broker.Eval(t, drop.String()+"ok") }
}

// granting returns an Erlang expression that sets the rights of the user.
func (u *user) granting(r rights) string {
	return fmt.Sprintf(`rabbit_auth_backend_internal:set_permissions(<<"%s">>, <<"%s">>, <<"^%s$">>, <<"^%s$">>, <<"^%s$">>, <<"test">>)`,
		*u.name.Load(), u.broker.VHost, r.configure, r.write, r.read)
}

func (u *user) may(r rights) {
	u.t.Helper()
	u.broker.Eval(u.t, u.granting(r))
}

// as returns config with the login of the user.
func (u *user) as(config amqp.Config) amqp.Config {
	u.t.Helper()
	address, err := url.Parse(u.broker.URL)
	kit.OK(u.t, err)
	config.Connection.AmqpConfig = &amqp091.Config{SASL: []amqp091.Authentication{u}, Vhost: strings.TrimPrefix(address.Path, "/")}
	return config
}

// Trap 107. A running subscription that loses a right waits, and others go on. Ping and
// the log say why. It continues when the right is there again, or when the next login has
// it. The user may declare no queue: it is enough that the queue exists.
func TestTrap107_SubscriptionWithoutARightWaitsForIt(t *testing.T) {
	t.Parallel()
	for name, repair := range map[string]func(u, other *user, r rights){
		"granted again": func(u, _ *user, r rights) { u.may(r) },
		"another login": func(u, other *user, _ rights) { u.name.Store(other.name.Load()) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			broker := kit.Rabbit(t)
			closed, open := declareQueue(t, broker.URL, nil), declareQueue(t, broker.URL, nil)
			both := rights{read: "(" + closed + "|" + open + ")"}
			users, remove := newUsers(t, broker, both, both)
			defer remove()
			u := users[0]
			cfg, h := brisk, new(heard)
			cfg.Logger = h
			s := newSubscriber(t, u.as(queueConfig(broker.URL)), cfg)
			waiting, going := subscribe(t, s, closed), subscribe(t, s, open)
			send(t, broker.URL, closed, "before")
			receive(t, waiting).Ack()

			u.may(rights{read: open})
			channel := admin(t, broker.URL)
			if _, err := channel.QueueDelete(closed, false, false, false); err != nil { // interrupts the subscription
				t.Fatal(err)
			}
			kit.OK(t, kit.Err(channel.QueueDeclare(closed, true, false, false, false, nil)))
			eventually(t, "Ping returns ErrForbidden", func() bool { return errors.Is(s.Ping(t.Context()), rabbit.ErrForbidden) })
			if err := s.Ping(t.Context()); !strings.Contains(fmt.Sprint(err), "set_permissions") || !strings.Contains(err.Error(), closed) {
				t.Errorf("Ping returns %v, want the topic and a remedy", err)
			}
			if h.said(interruptedLine+", retrying rabbit: forbidden") != 1 {
				t.Errorf("logged %q, want one line with the missing right", h.all())
			}
			send(t, broker.URL, closed, "waits")
			send(t, broker.URL, open, "goes on")
			kept := receive(t, going)

			repair(u, users[1], both)
			receive(t, waiting).Ack()
			if err := s.Ping(t.Context()); err != nil {
				t.Errorf("Ping returns %v after the repair", err)
			}
			if kept.Context().Err() != nil || !kept.Ack() {
				t.Error("the subscription of the other queue was interrupted")
			}
		})
	}
}

// The rights that docs/roles.md names are enough for a consumer. Subscribe reports a
// right that is missing at the start.
func TestTrap107_SubscribeNeedsTheDocumentedRights(t *testing.T) {
	t.Parallel()
	broker := kit.Rabbit(t)
	topic := broker.Name("orders")
	queue, exchange := topic+"_shop", topic
	both := "(" + queue + "|" + exchange + ")"
	cases := []struct {
		name   string
		rights rights
		exists bool // the queue
		works  bool
	}{
		{"no right to declare a new queue", rights{"", queue, both}, false, false},
		{"no right to declare the exchange", rights{queue, queue, both}, false, false},
		{"no right to bind", rights{both, "", both}, false, false},
		{"no right to read", rights{both, queue, exchange}, false, false},
		{"all", rights{both, queue, both}, false, true},
		{"only to read a queue that exists", rights{"", "", queue}, true, true},
		{"not to read a queue that exists", rights{"", "", ""}, true, false},
	}
	var all []rights
	for _, c := range cases {
		all = append(all, c.rights)
	}
	users, remove := newUsers(t, broker, all...)
	defer remove()
	channel := admin(t, broker.URL)
	for i, c := range cases {
		config := amqp.NewDurablePubSubConfig(broker.URL, func(topic string) string { return topic + "_shop" })
		config.Marshaler = rabbit.Marshaler{}
		s := newSubscriber(t, users[i].as(config), brisk)
		if !c.exists {
			_, err := channel.QueueDelete(queue, false, false, false)
			kit.OK(t, errors.Join(err, channel.ExchangeDelete(exchange, false, false)))
		}
		err := s.SubscribeInitialize(topic)
		messages, subscribed := s.Subscribe(t.Context(), topic)
		if !c.works {
			if !errors.Is(subscribed, rabbit.ErrForbidden) || err != nil && !errors.Is(err, rabbit.ErrForbidden) {
				t.Errorf("%s: Subscribe returns %v, and SubscribeInitialize %v", c.name, subscribed, err)
			}
			continue
		}
		if err := errors.Join(err, subscribed); err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		kit.OK(t, channel.Publish(exchange, "", false, false, amqp091.Publishing{Body: []byte("x")}))
		receive(t, messages).Ack()
		kit.Check(t, s.Close())
	}
}

// fatal is a topology builder. While it is broken, the broker closes the connection that
// declares the queue with the name of its topic.
type fatal struct {
	amqp.DefaultTopologyBuilder

	topic  string
	broken atomic.Bool
	tries  atomic.Int32
}

func (f *fatal) BuildTopology(c *amqp091.Channel, queue, exchange string, config amqp.Config, l watermill.LoggerAdapter) error {
	if queue == f.topic && f.broken.Load() {
		f.tries.Add(1)
		return c.Qos(0, 1, false) // 540, with all versions of RabbitMQ
	}
	return f.DefaultTopologyBuilder.BuildTopology(c, queue, exchange, config, l)
}

// Trap 105. The broker answers some declarations by closing the connection. Subscribe
// returns this as an error. When a subscription declares its topology again, and fails in
// this way, the other subscriptions keep their connection.
func TestTrap105_DeclarationThatClosesTheConnectionConcernsOnlyItsTopic(t *testing.T) {
	t.Parallel()
	broker := kit.Rabbit(t)
	topology, h := &fatal{topic: broker.Name("bad")}, new(heard)
	config, cfg := queueConfig(broker.URL), brisk
	config.TopologyBuilder, cfg.Logger = topology, h
	s := newSubscriber(t, config, cfg)
	good := broker.Name("good")
	goodMessages := subscribe(t, s, good)

	topology.broken.Store(true)
	refused := func() {
		t.Helper()
		_, err := s.Subscribe(context.WithoutCancel(t.Context()), topology.topic)
		initErr := s.SubscribeInitialize(topology.topic)
		for _, err := range []error{err, initErr} {
			if err == nil || !strings.Contains(err.Error(), "540") || !strings.Contains(err.Error(), topology.topic) {
				t.Fatalf("the refused declaration returns %v", err)
			}
		}
	}
	keepsItsConnection := func(f func()) {
		t.Helper()
		send(t, broker.URL, good, "m")
		held := receive(t, goodMessages)
		f()
		if err := held.Context().Err(); err != nil {
			t.Errorf("the other subscription has lost its connection: %v", context.Cause(held.Context()))
		}
		held.Ack()
	}
	refused()
	keepsItsConnection(refused)

	topology.broken.Store(false)
	badMessages := subscribe(t, s, topology.topic)
	send(t, broker.URL, topology.topic, "b")
	receive(t, badMessages).Ack()
	topology.broken.Store(true)
	tries := topology.tries.Load() + 3
	broker.CloseConnections(t, "test")
	eventually(t, "the topology is declared again", func() bool { return topology.tries.Load() > tries })
	keepsItsConnection(func() {
		tries := topology.tries.Load() + 3
		eventually(t, "the topology is declared again", func() bool { return topology.tries.Load() > tries })
	})
	topology.broken.Store(false)
	send(t, broker.URL, topology.topic, "c")
	receive(t, badMessages).Ack()
	kit.Check(t, s.Close())
	if h.said(interruptedLine) == 0 {
		t.Errorf("logged: %q", h.all())
	}
}

// streaming is a topology builder that declares a stream, whatever the configuration says.
type streaming struct{ amqp.DefaultTopologyBuilder }

func (streaming) BuildTopology(c *amqp091.Channel, queue, _ string, _ amqp.Config, _ watermill.LoggerAdapter) error {
	_, err := c.QueueDeclare(queue, true, false, false, false, amqp091.Table{"x-queue-type": "stream"})
	return err
}

// A stream does not deliver a message again, so it is refused.
func TestStreamIsRefused(t *testing.T) {
	t.Parallel()
	broker := kit.Rabbit(t)
	config := queueConfig(broker.URL)
	config.TopologyBuilder = &streaming{}
	_, err := newSubscriber(t, config, brisk).Subscribe(context.WithoutCancel(t.Context()), broker.Name("stream"))
	if err == nil || !strings.Contains(err.Error(), "is a stream") {
		t.Errorf("Subscribe: %v", err)
	}
	config.Queue.Arguments = amqp091.Table{"x-queue-type": "stream"}
	if _, err := rabbit.NewSubscriber(config, brisk); err == nil || !strings.Contains(err.Error(), "is a stream") {
		t.Errorf("NewSubscriber: %v", err)
	}
}
