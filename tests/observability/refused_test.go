package observability

import (
	"testing"
	"time"

	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/watermill-once/once/forwarder"
	"github.com/watermill-once/once/internal/testkit"
	"github.com/watermill-once/once/rabbit"
)

// undeclared declares no exchanges.
type undeclared struct{ wamqp.DefaultTopologyBuilder }

func (undeclared) ExchangeDeclare(*amqp.Channel, string, wamqp.Config) error { return nil }

// Messages for a topic without a queue, and for a topic without an exchange,
// are refused, while messages of another topic are sent. The refused messages
// back off, but the lag grows, and falls to zero when the cause ends.
func TestLagCountsRefusedMessages(t *testing.T) {
	t.Parallel()
	broker := testkit.Rabbit(t)
	missing := queue(broker.URL)
	missing.TopologyBuilder = &undeclared{}
	missing.Exchange.GenerateName = func(topic string) string { return topic }
	for name, config := range map[string]wamqp.Config{"no queue": queue(broker.URL), "no exchange": missing} {
		t.Run(name, func(t *testing.T) {
			if name != "no queue" {
				testkit.Long(t)
			}
			w := newWatch(t)
			db, box := w.database(), w.outbox()
			topic := broker.Name("nobody")
			w.forward(db, w.rabbit(config, rabbit.PublisherConfig{}), forwarder.Config{
				Topics: []string{topic}, Backoff: func(int) time.Duration { return time.Second },
			})
			w.publish(w.Context(), db, box, topic, message.NewMessage("1", nil), message.NewMessage("2", nil))
			w.reaches(4, "once.forwarder.lag", "") // long after a back-off has ended
			w.reaches(3, "once.forwarder.deferred", "messaging.destination.name="+topic+" once.reason=refused")

			channel := w.declare(broker.URL, topic, nil)
			if name == "no exchange" {
				if err := channel.ExchangeDeclare(topic, "fanout", true, false, false, false, nil); err != nil {
					t.Fatal(err)
				}
				if err := channel.QueueBind(topic, "", topic, false, nil); err != nil {
					t.Fatal(err)
				}
			}
			w.eventually("nothing waits", func() bool {
				return w.value("once.forwarder.lag", "") == 0 && w.value("once.forwarder.pending", "") == 0
			})
		})
	}
}
