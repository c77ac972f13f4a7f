package observability

import (
	"strings"
	"testing"
	"time"

	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/watermill-once/once/forwarder"
	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/rabbit"
)

// Each configured topic has its own series. All other topics share one series.
func TestConfiguredTopicsHaveTheirOwnSeries(t *testing.T) {
	t.Parallel()
	w := newWatch(t)
	db, box := w.database(), w.outbox()
	pub := &scripted{answer: func(_ string, msg *message.Message) error {
		if msg.UUID == "hopeless" {
			return outcomeError("unacceptable")
		}
		return nil
	}}
	t.Cleanup(pub.running.Wait)
	w.forward(db, pub, forwarder.Config{Topics: []string{"orders", "payments", "orders"}})
	w.awaitValue(0, "once.forwarder.dead", "messaging.destination.name=other once.reason=exhausted") // from the start
	for id, topic := range map[string]string{"1": "orders", "2": "orders", "3": "payments", "4": "a", "hopeless": "b"} {
		w.publish(t.Context(), db, box, topic, message.NewMessage(id, nil))
	}
	w.awaitValue(2, "once.forwarder.published", "messaging.destination.name=orders once.outcome=confirmed")
	w.awaitValue(1, "once.forwarder.published", "messaging.destination.name=payments once.outcome=confirmed")
	w.awaitValue(1, "once.forwarder.published", "messaging.destination.name=other once.outcome=confirmed")
	w.awaitValue(1, "once.forwarder.dead", "messaging.destination.name=other once.reason=unacceptable")
	if n := len(w.instruments()["once.forwarder.published"].series); n != 3*5 {
		t.Errorf("%d series", n)
	}
}

// undeclared declares no exchanges.
type undeclared struct{ wamqp.DefaultTopologyBuilder }

func (undeclared) ExchangeDeclare(*amqp.Channel, string, wamqp.Config) error { return nil }

// Messages for a topic without a queue, and for a topic without an exchange,
// are refused, while messages of another topic are sent. One error names the topic,
// the cause and the remedy. The refused messages back off, but the lag grows, and
// falls to zero when the cause ends.
func TestLagCountsRefusedMessages(t *testing.T) {
	kit.Long(t)
	t.Parallel()
	broker := kit.Rabbit(t)
	missing := queue(broker.URL)
	missing.TopologyBuilder = &undeclared{}
	missing.Exchange.GenerateName = func(topic string) string { return topic }
	for name, c := range map[string]struct {
		config wamqp.Config
		says   string
	}{
		"no queue": {
			queue(broker.URL), `rabbit: returned as unroutable: message "1", topic "TOPIC", exchange "", routing key "TOPIC": 312: NO_ROUTE; ` +
				`no queue receives the message: declare a queue, and bind it to the exchange with this routing key`,
		},
		"no exchange": {
			missing, `rabbit: refused: message "1", topic "TOPIC", exchange "TOPIC", routing key "TOPIC": 404: ` +
				`NOT_FOUND - no exchange 'TOPIC' in vhost '` + broker.VHost + `'; declare the exchange`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			if name != "no queue" {
				kit.Long(t)
			}
			w := newWatch(t)
			db, box := w.database(), w.outbox()
			topic := broker.Name("nobody")
			w.forward(db, w.rabbit(c.config, rabbit.PublisherConfig{}), forwarder.Config{
				Topics: []string{topic}, Backoff: func(int) time.Duration { return time.Second },
			})
			w.publish(w.Context(), db, box, topic, message.NewMessage("1", nil))
			const refused = "ERROR Messages of a topic are refused, they are tried again later "
			line := strings.ReplaceAll(refused+"attempt=1 message_uuid=1 size=2 topic=TOPIC err="+c.says, "TOPIC", topic)
			kit.Eventually(t, time.Minute, "it is logged: "+line, func() bool { return w.logs.CountLine(line) == 1 })
			w.publish(w.Context(), db, box, topic, message.NewMessage("2", nil))
			w.awaitValue(4, "once.forwarder.lag", "") // long after a back-off has ended
			w.awaitValue(3, "once.forwarder.deferred", "messaging.destination.name="+topic+" once.reason=refused")

			channel := w.declare(broker.URL, topic, nil)
			if name == "no exchange" {
				kit.OK(t, channel.ExchangeDeclare(topic, "fanout", true, false, false, false, nil))
				kit.OK(t, channel.QueueBind(topic, "", topic, false, nil))
			}
			w.eventually("nothing waits", func() bool {
				return w.value("once.forwarder.lag", "") == 0 && w.value("once.forwarder.pending", "") == 0
			})
			if n := w.logs.Count(refused); n != 1 { // further refusals are only counted
				t.Errorf("logged %d times, want once: %q", n, w.logs.Lines())
			}
		})
	}
}
