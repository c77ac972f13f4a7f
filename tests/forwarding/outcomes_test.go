package forwarding

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill"
	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/watermill-once/once/forwarder"
	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/operate"
	"github.com/watermill-once/once/operate/dead"
	"github.com/watermill-once/once/outbox"
	"github.com/watermill-once/once/rabbit"
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
	kit.OK(t, err)
}

// Some messages cannot be delivered because of a full queue, a routing key without a
// queue, or an exchange that does not exist. All this happens at the same time, beside
// valid messages. Attempts are counted only for the messages that cannot be delivered.
// Each of them keeps the order of its key, and is delivered when the test has removed
// the cause.
func TestRefusedMessagesBackOffAlone(t *testing.T) {
	kit.Long(t)
	t.Parallel()
	f := newFlow(t, kit.Postgres(t).DB, kit.Rabbit(t).URL)
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
	kit.Long(t) // it needs a broker of its own for its limit
	t.Parallel()
	broker := kit.PrivateRabbitInTurn(t)
	before, err := broker.LimitMessages(t.Context(), 1000)
	kit.OK(t, err)
	defer func() {
		kit.Check(t, kit.Err(broker.LimitMessages(t.Context(), before)))
	}()
	f := newFlow(t, kit.Postgres(t).DB, broker.URL("/"))
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

// Trap 88. If a second forwarder publishes to another virtual host, its Run returns an
// error. All messages reach the first virtual host.
func TestSecondBrokerOnOneOutboxIsRefused(t *testing.T) {
	kit.Long(t)
	t.Parallel()
	here, there := kit.Rabbit(t), kit.Rabbit(t)
	if here.URL == there.URL {
		kit.Without(t, fmt.Errorf("there is only one virtual host"))
	}
	f := newFlow(t, kit.Postgres(t).DB, here.URL)
	other := *f
	other.url = there.URL
	kit.OK(t, kit.Err(other.admin().QueueDeclare(f.queue, true, false, false, false, nil)))
	f.forward(f.db, toQueues(here.URL), quick(f.log))

	publisher, err := rabbit.NewPublisher(toQueues(there.URL), impatient(f.log))
	kit.OK(t, err)
	defer publisher.Close()
	second, err := forwarder.New(f.db, publisher, quick(f.log))
	kit.OK(t, err)
	ended := kit.Go(func() error { return second.Run(context.WithoutCancel(t.Context())) })
	defer second.Close()
	f.eventually("the second forwarder has ended, or has a part of the outbox", func() bool {
		return len(ended) > 0 || f.count(`(SELECT DISTINCT owner FROM once_slots WHERE owner IS NOT NULL) AS owners`) == 2
	})
	f.put(100)
	f.drained()
	if ids := other.arrived(f.queue); len(ids) != 0 {
		t.Errorf("%d of 100 messages went to the second broker", len(ids))
	}
	f.complete()
}

// Trap 112. The errors of package rabbit contain the id of the message, and sizes. Dead
// letters of one cause are one group, and its fingerprint selects them.
func TestTrap112_DeadLettersOfOneCauseAreOneGroup(t *testing.T) {
	t.Parallel()
	f := newFlow(t, kit.Postgres(t).DB, kit.Rabbit(t).URL)
	must(t, f.admin().ExchangeDeclare("main", "direct", true, false, false, false, nil))
	const each = 5
	for i := range each {
		f.publish("main/unbound", keyed(watermill.NewUUID(), fmt.Sprint("a", i)))
		f.publish("nowhere/x", keyed(watermill.NewShortUUID(), fmt.Sprint("b", i)))
		f.publish("elsewhere/x", keyed(watermill.NewULID(), fmt.Sprint("c", i)))
		large := message.NewMessage(fmt.Sprintf("order-%c", 'a'+i), nil)
		large.Metadata.Set("header", strings.Repeat("x", 200_000+i))
		f.publish("main/large", large)
	}
	config := quick(f.log)
	config.MaxAttempts = 1
	f.forward(f.db, routed(f.url), config)
	f.eventually("all messages are dead letters", func() bool { return f.count(`once_outbox_dead`) == 4*each })
	letters, err := dead.New(f.db, operate.Config{})
	must(t, err)
	page, err := letters.Groups(t.Context(), operate.Filter{})
	must(t, err)
	if len(page.Groups) != 4 {
		t.Errorf("%d groups, want 4", len(page.Groups))
	}
	for _, g := range page.Groups {
		found, err := letters.List(t.Context(), operate.Filter{Fingerprint: g.Fingerprint})
		must(t, err)
		if g.Count != each || len(found.Rows) != each {
			t.Errorf("group of %d letters, of which the filter finds %d: %s", g.Count, len(found.Rows), g.Error)
		}
	}
}
