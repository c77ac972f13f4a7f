package forwarding

import (
	"context"
	"errors"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/watermill-once/once/forwarder"
	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/rabbit"
)

// login is an AMQP authentication whose credentials can change, like a token.
type login struct{ user atomic.Pointer[string] }

func (*login) Mechanism() string { return "PLAIN" }

func (l *login) Response() string {
	return (&amqp.PlainAuth{Username: *l.user.Load(), Password: password}).Response()
}

// While the publisher lacks a right for one topic, nothing is charged, other topics go
// on, and Ping, the log and the row say why. The topic continues when the right is there
// again, or when the next connection has other credentials. A user that may not declare
// exchanges can publish to those that exist. The right can be one for an exchange, or one
// for the routing keys of a topic exchange.
func TestTrap107_MissingRightIsAnOutageOfItsTopic(t *testing.T) {
	t.Parallel()
	const shared = "events" // the exchange of all topics, if the right is one for routing keys
	type grantFunc func(user, write string)
	again := func(grant grantFunc, l *login, _ string) { grant(*l.user.Load(), ".*") }
	renewed := func(grant grantFunc, l *login, other string) { grant(other, ".*"); l.user.Store(&other) }
	for name, c := range map[string]struct {
		right  string // the command that sets it
		repair func(grant grantFunc, l *login, other string)
	}{
		"granted again":                        {"set_permissions", again},
		"another login":                        {"set_permissions", renewed},
		"for routing keys":                     {"set_topic_permissions", again},
		"for routing keys, with another login": {"set_topic_permissions", renewed},
	} {
		t.Run(name, func(t *testing.T) {
			if name == "for routing keys, with another login" {
				kit.Long(t)
			}
			t.Parallel()
			broker := kit.Rabbit(t)
			user, other := broker.Name("shop"), broker.Name("other")
			byKey := c.right == "set_topic_permissions"
			grant := func(user, write string) {
				if byKey {
					broker.PermitKeys(t, user, shared, write, "^$")
				} else {
					broker.Permit(t, user, "^$", write, "^$")
				}
			}
			for _, name := range []string{user, other} {
				defer broker.AddUser(t, name, password)()
				if byKey {
					broker.Permit(t, name, "^$", ".*", "^$")
				}
			}
			f := newFlow(t, kit.Postgres(t).DB, broker.URL)
			channel := f.admin()
			config := wamqp.NewDurablePubSubConfig(broker.URL, nil)
			if byKey {
				config = rabbit.TopicExchange(broker.URL, shared, "")
				must(t, channel.ExchangeDeclare(shared, "topic", true, false, false, false, nil))
			}
			for _, topic := range []string{"closed", "open"} {
				_, err := channel.QueueDeclare(topic, true, false, false, false, nil)
				must(t, err)
				exchange := shared
				if !byKey {
					exchange = topic
					must(t, channel.ExchangeDeclare(exchange, "fanout", true, false, false, false, nil))
				}
				must(t, channel.QueueBind(topic, topic, exchange, false, nil))
			}
			grant(user, ".*") // RabbitMQ 4 grants rights only for an exchange that exists
			l := &login{}
			l.user.Store(&user)
			publisher := f.forwardAs(config, l)
			f.publish("closed", keyed("before", "k"))
			f.drained()

			grant(user, "^open$")
			f.eventually("the broker refuses a message", func() bool {
				f.publish("closed", message.NewMessage(broker.Name("m"), nil)) // the broker remembers rights for a while on a channel
				return f.count(`once_outbox WHERE last_error LIKE '%403%'`) > 0
			})
			for range 20 {
				f.publish("closed", keyed(broker.Name("keyed"), "k"), message.NewMessage(broker.Name("free"), nil))
				f.publish("open", message.NewMessage(broker.Name("open"), nil))
			}
			f.eventually("the other topic goes on", func() bool { return f.count(`once_outbox WHERE topic = 'open'`) == 0 })
			if err := publisher.Ping(t.Context()); !errors.Is(err, rabbit.ErrForbidden) || !strings.Contains(err.Error(), c.right) {
				t.Errorf("Ping returns %v, want ErrForbidden with a remedy", err)
			}
			if n := f.log.Count("The broker takes no messages of a topic"); n == 0 {
				t.Error("the log does not say that the broker refuses the topic")
			}
			waiting := f.count(`once_outbox`)
			c.repair(grant, l, other)
			f.drained()
			f.nothingCharged()
			if waiting < 40 {
				t.Errorf("%d messages waited, want 40 at least", waiting)
			}
			f.eventually("Ping succeeds again", func() bool { return publisher.Ping(t.Context()) == nil })
		})
	}
}

// forwardAs runs a forwarder that logs in with l, and gives up a message at its second
// refusal.
func (f *flow) forwardAs(config wamqp.Config, l *login) *rabbit.Publisher {
	f.Helper()
	config.Marshaler = rabbit.Marshaler{}
	config.Connection.Reconnect = soon
	config.Connection.AmqpConfig = &amqp.Config{SASL: []amqp.Authentication{l}}
	parsed, err := url.Parse(config.Connection.AmqpURI)
	must(f.T, err)
	config.Connection.AmqpConfig.Vhost = strings.TrimPrefix(parsed.Path, "/")
	cfg := quick(f.log)
	cfg.MaxAttempts, cfg.StallTimeout = 2, time.Second
	settings := impatient(f.log)
	settings.ReadyTimeout = time.Second / 2
	publisher, err := rabbit.NewPublisher(config, settings)
	must(f.T, err)
	forward, err := forwarder.New(f.db, publisher, cfg)
	must(f.T, err)
	ended := kit.Go(func() error { return forward.Run(context.WithoutCancel(f.Context())) })
	f.Cleanup(func() {
		kit.Check(f, errors.Join(forward.Close(), <-ended, publisher.Close()))
	})
	return publisher
}
