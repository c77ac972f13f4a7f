package forwarding

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/watermill-once/once/internal/testkit"
	"github.com/watermill-once/once/outbox"
)

// undeclared is a topology builder that declares nothing.
type undeclared struct{ wamqp.DefaultTopologyBuilder }

func (undeclared) ExchangeDeclare(*amqp.Channel, string, wamqp.Config) error { return nil }

// routed returns a configuration in which the topic "exchange/key" means this exchange
// and this routing key. It declares nothing.
func routed(url string) wamqp.Config {
	config := toQueues(url)
	config.TopologyBuilder = &undeclared{}
	config.Exchange.GenerateName = func(topic string) string { name, _, _ := strings.Cut(topic, "/"); return name }
	config.Publish.GenerateRoutingKey = func(topic string) string { _, key, _ := strings.Cut(topic, "/"); return key }
	return config
}

// keyed returns a message with an ordering key.
func keyed(id, key string) *message.Message {
	msg := message.NewMessage(id, []byte("payload"))
	outbox.SetOrderingKey(msg, key)
	return msg
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// Some messages cannot be delivered because of a full queue, a routing key without a
// queue, or an exchange that does not exist. All this happens at the same time, beside
// valid messages. Attempts are counted only for the messages that cannot be delivered.
// Each of them keeps the order of its key, and is delivered when the test has removed
// the cause.
func TestRefusedMessagesBackOffAlone(t *testing.T) {
	testkit.Long(t)
	t.Parallel()
	f := newFlow(t, testkit.Postgres(t).DB, testkit.Rabbit(t).URL)
	channel := f.admin()
	must(t, channel.ExchangeDeclare("main", "direct", true, false, false, false, nil))
	for name, arguments := range map[string]amqp.Table{
		"full": {"x-max-length": int32(1), "x-overflow": "reject-publish"}, "later": nil,
	} {
		_, err := channel.QueueDeclare(name, true, false, false, false, arguments)
		must(t, err)
	}
	must(t, channel.QueueBind("full", "full", "main", false, nil))
	must(t, channel.QueueBind(f.queue, "fine", "main", false, nil))
	must(t, channel.PublishWithContext(t.Context(), "main", "full", false, false, amqp.Publishing{MessageId: "occupant"}))
	f.eventually("the queue is full", func() bool {
		return f.waiting(channel, "full") == 1
	})

	var refused []string
	put := func(topic, id string) {
		refused = append(refused, id+"1", id+"2")
		f.publish(topic, keyed(id+"1", id), keyed(id+"2", id))
	}
	fine := func() {
		for range 50 {
			f.publish("main/fine", f.next())
		}
	}
	fine()
	put("main/full", "full")
	put("main/unbound", "unbound")
	put("nowhere/x", "nowhere")
	fine()
	f.forward(f.db, routed(f.url), quick(f.log))
	for id, reason := range map[string]string{"full": "nacked", "unbound": "312: NO_ROUTE", "nowhere": "404: NOT_FOUND"} {
		f.eventually(id+" is refused again and again", func() bool {
			return f.count(fmt.Sprintf(`charged WHERE message_id = '%s1' AND error LIKE '%%%s%%' AND attempts >= 3`, id, reason)) > 0
		})
	}
	fine() // valid messages beside the refused messages, on the channel that the broker closes
	f.eventually("the valid messages are sent", func() bool { return f.count(`once_outbox`) == len(refused) })
	f.nothingCharged("full1", "unbound1", "nowhere1") // no attempt is counted for the messages behind them

	must(t, channel.QueueBind("later", "unbound", "main", false, nil))
	must(t, channel.ExchangeDeclare("nowhere", "direct", true, false, false, false, nil))
	must(t, channel.QueueBind("later", "x", "nowhere", false, nil))
	var full []string // the queue accepts one message at a time; the test has put the first one
	f.eventually("the outbox is empty", func() bool {
		delivery, ok, err := channel.Get("full", true)
		must(t, err)
		if ok {
			full = append(full, delivery.MessageId)
		}
		return f.count(`once_outbox`) == 0
	})
	// If a message was in flight when the channel was closed, it may be sent twice.
	full = append(full, f.arrived("full")...)
	if got := slices.Compact(full); !slices.Equal(got, []string{"occupant", "full1", "full2"}) {
		t.Errorf("the queue that was full contains %v", got)
	}
	later := f.arrived("later")
	slices.Sort(later)
	if got := slices.Compact(later); !slices.Equal(got, []string{"nowhere1", "nowhere2", "unbound1", "unbound2"}) {
		t.Errorf("the queue whose binding was missing contains %v", got)
	}
	if n := f.count(`once_outbox_dead`); n != 0 {
		t.Errorf("%d dead letters", n)
	}
	f.inOrder(f.arrived(f.queue))
}

// Messages exceed a limit of the protocol, or of this broker. The test inserts them into the table
// directly, because the outbox would refuse them. Each of these messages becomes a dead letter
// immediately. Later messages of the same key are sent.
func TestUnsendableMessagesBecomeDeadLetters(t *testing.T) {
	t.Parallel()
	broker := testkit.PrivateRabbitInTurn(t)
	eval(t, broker, "{ok, Size} = application:get_env(rabbit, max_message_size), "+
		"application:set_env(rabbit, once_test_size, Size), application:set_env(rabbit, max_message_size, 1000)")
	defer eval(t, broker, "{ok, Size} = application:get_env(rabbit, once_test_size), application:set_env(rabbit, max_message_size, Size)")
	f := newFlow(t, testkit.Postgres(t).DB, broker.URL("/"))
	var hopeless []string
	for i, bad := range []struct {
		id, topic string
		body      []byte
		metadata  string
	}{
		{"body", f.queue, make([]byte, 2000), `{}`},
		{"header", f.queue, []byte{}, `{"header": "` + strings.Repeat("x", 200_000) + `"}`},
		{"header name", f.queue, []byte{}, `{"` + strings.Repeat("x", 300) + `": ""}`},
		{"routing key", strings.Repeat("x", 300), []byte{}, `{}`},
	} {
		hopeless = append(hopeless, bad.id)
		f.put(20)
		f.exec(`INSERT INTO once_outbox (message_id, topic, ordering_key, slot, payload, metadata)
			VALUES ($1, $2, $3, 0, $4, $5)`, bad.id, bad.topic, fmt.Sprint("key", i), bad.body, bad.metadata)
	}
	f.put(20)
	f.forward(f.db, toQueues(f.url), quick(f.log))
	f.drained()
	f.nothingCharged(hopeless...)
	if n := f.count(`once_outbox_dead WHERE reason = 'unacceptable' AND attempts = 1`); n != len(hopeless) {
		t.Errorf("%d of %d became dead letters at once", n, len(hopeless))
	}
	if n := f.count(`charged`); n != 0 {
		t.Errorf("%d attempts were charged before", n)
	}
	if n := f.count(`once_outbox_dead WHERE unknown AND message_id <> 'body'`); n != 0 {
		t.Errorf("%d messages have an unknown outcome, although they were never sent", n)
	}
	f.inOrder(f.arrived(f.queue))
}
