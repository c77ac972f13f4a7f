package tests

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/operate"
	"github.com/watermill-once/once/operate/dead"
	"github.com/watermill-once/once/operate/quarantine"
	"github.com/watermill-once/once/outbox"
	"github.com/watermill-once/once/rabbit"
	"github.com/watermill-once/once/retry"
)

// shop returns a chain whose broker has one topic exchange for all events.
func shop(t *testing.T) *chain {
	t.Helper()
	c := newChain(t, kit.Postgres(t).DB, kit.Rabbit(t).URL)
	exchange := kit.Broker{}.Name("shop")
	c.topology = func(service string) wamqp.Config {
		config := rabbit.TopicExchange(c.amqpURL, exchange, service)
		config.Queue.Arguments = amqp.Table{"x-queue-type": c.queues}
		return config
	}
	return c
}

// put commits an event of a type.
func (c *chain) put(eventType, id, key string, metadata ...string) {
	c.Helper()
	msg := message.NewMessage(id, []byte(eventType))
	outbox.SetEventType(msg, eventType)
	if key != "" {
		outbox.SetOrderingKey(msg, key)
	}
	for i := 0; i < len(metadata); i += 2 {
		msg.Metadata.Set(metadata[i], metadata[i+1])
	}
	kit.OK(c, outbox.InTx(c.Context(), c.db, func(_ *sql.Tx, events message.Publisher) error {
		return events.Publish(eventType, msg)
	}))
	c.forward.Hint()
}

// effects returns the ids of the messages that a consumer has handled, in order.
func (c *chain) effects(consumer string) string {
	c.Helper()
	ids := kit.One[sql.NullString](c, c.db, `SELECT string_agg(message_id, ' ' ORDER BY ctid) FROM effects WHERE consumer = $1`,
		consumer)
	return ids.String
}

// Each consumer gets the events that its pattern matches, once.
func TestTopicExchangeRoutesByEventType(t *testing.T) {
	t.Parallel()
	c := shop(t)
	for consumer, pattern := range map[string]string{
		"orders": "orders.*", "refunds": "*.refunded", "placed": "orders.placed", "audit": "#", "nested": "orders.#",
	} {
		c.handle(consumer, pattern, record(consumer))
	}
	c.start()
	for id, eventType := range map[string]string{
		"o1": "orders.placed", "o2": "orders.refunded", "p1": "payments.refunded", "d1": "orders.lines.added", "x1": "mails",
	} {
		c.put(eventType, id, "")
	}
	want := map[string]string{"orders": "o1 o2", "refunds": "o2 p1", "placed": "o1", "audit": "d1 o1 o2 p1 x1", "nested": "d1 o1 o2"}
	n := 0
	for _, ids := range want {
		n += len(strings.Fields(ids))
	}
	c.settle(n)
	for consumer, ids := range want {
		got := strings.Fields(c.effects(consumer))
		slices.Sort(got)
		if !slices.Equal(got, strings.Fields(ids)) {
			t.Errorf("%s got %v, want %s", consumer, got, ids)
		}
	}
}

// An event whose type matches no pattern is refused, and is delivered after a queue was bound.
// Other events do not wait for it.
func TestTopicExchangeKeepsEventsThatNoPatternMatches(t *testing.T) {
	t.Parallel()
	c := shop(t)
	c.handle("orders", "orders.*", record("orders"))
	c.startForwarder()
	c.put("payments.captured", "p1", "")
	c.put("orders.placed", "o1", "")
	c.eventually("the broker has returned the event without a queue", func() bool {
		return c.count(`once_outbox WHERE message_id = 'p1' AND attempts > 0`) == 1 && c.count(`once_outbox`) == 1
	})
	reason := kit.One[string](t, c.db, `SELECT last_error FROM once_outbox`)
	if !strings.Contains(reason, "unroutable") || !strings.Contains(reason, `routing key "payments.captured"`) {
		t.Errorf("the error is %s", reason)
	}
	c.handle("payments", "payments.*", record("payments")) // it binds the queue
	c.startRouter()
	c.settle(2)
	if got := c.effects("payments"); got != "p1" {
		t.Errorf("payments has %q", got)
	}
}

// A failing event is retried, quarantined and replayed for the consumer of its pattern.
// Other consumers do not see it again, and its routing key does not matter.
func TestTopicExchangeWithRetriesQuarantineAndReplay(t *testing.T) {
	t.Parallel()
	c := shop(t)
	var mended atomic.Bool
	var stumbles atomic.Int32
	c.handle("orders", "orders.*", func(ctx context.Context, tx *sql.Tx, msg *message.Message) ([]*message.Message, error) {
		switch {
		case msg.UUID == "hopeless" && !mended.Load():
			return nil, retry.Permanent(errors.New("no such product"))
		case msg.UUID == "stumbles" && stumbles.Add(1) < 4:
			return nil, errors.New("try later")
		}
		return record("orders")(ctx, tx, msg)
	})
	c.handle("audit", "#", record("audit"))
	c.start()
	c.put("orders.placed", "fine", "")
	c.put("orders.refunded", "stumbles", "")
	c.put("orders.placed", "hopeless", "")
	c.settle(5)
	entries := c.consumer.Quarantine()
	var page operate.Page[quarantine.Entry]
	c.eventually("the message is in quarantine", func() bool {
		page, _ = entries.List(t.Context(), operate.Filter{})
		return len(page.Rows) == 1
	})
	if e := page.Rows[0]; e.Consumer != "orders" || e.Topic != "orders.*" || e.Message.Metadata.Get(outbox.EventType) != "orders.placed" {
		t.Errorf("entry %+v", e)
	}
	mended.Store(true)
	kit.OK(t, entries.Replay(t.Context(), operate.Act{Actor: "test", Why: "mended"}, page.Rows[0].ID))
	c.settle(6)
	if n := c.count(`effects WHERE consumer = 'audit'`); n != 3 {
		t.Errorf("audit has %d effects, want 3", n)
	}
}

// Events of one ordering key keep their order in the queue of a pattern, although they
// have different event types.
func TestTopicExchangeKeepsTheOrderOfAKeyAcrossEventTypes(t *testing.T) {
	kit.Long(t)
	t.Parallel()
	c := shop(t)
	c.order = retry.BlockWhileRetried
	c.build()
	c.handle("orders", "orders.*", record("orders"))
	c.start()
	var want []string
	for n := range 20 {
		for _, eventType := range []string{"orders.placed", "orders.paid", "orders.shipped"} {
			id := fmt.Sprintf("%s-%02d", eventType, n)
			want = append(want, id)
			c.put(eventType, id, "order-17")
		}
	}
	c.settle(len(want))
	if got := c.effects("orders"); got != strings.Join(want, " ") {
		t.Errorf("the order is %s", got)
	}
}

// Metadata that would control RabbitMQ is refused in the transaction if the outbox has rabbit's
// Check, and becomes a dead letter with a clear reason if the outbox has no Check.
func TestMetadataThatWouldControlRabbitMQIsNotLostSilently(t *testing.T) {
	t.Parallel()
	c := shop(t)
	c.handle("audit", "#", record("audit"))
	c.start()
	box, err := outbox.New(outbox.Config{Check: rabbit.Check})
	kit.OK(t, err)
	err = box.InTx(t.Context(), c.db, func(_ *sql.Tx, events message.Publisher) error {
		msg := message.NewMessage("early", nil)
		msg.Metadata.Set("BCC", "elsewhere")
		return events.Publish("orders.placed", msg)
	})
	if !errors.Is(err, outbox.ErrInvalid) || !strings.Contains(err.Error(), `metadata "BCC" would control RabbitMQ`) {
		t.Errorf("with Check: %v", err)
	}
	c.put("orders.placed", "late", "", "BCC", "elsewhere")
	c.put("orders.placed", "fine", "")
	c.settle(1)
	letters, err := dead.New(c.db, operate.Config{})
	kit.OK(t, err)
	var page operate.Page[dead.Letter]
	c.eventually("the message is a dead letter", func() bool {
		page, err = letters.List(t.Context(), operate.Filter{})
		return err != nil || len(page.Rows) == 1
	})
	kit.OK(t, err)
	const want = `forwarder: the publisher cannot send this message: rabbit: invalid: metadata "BCC" would control RabbitMQ: rename it`
	if d := page.Rows[0]; d.MessageID != "late" || d.Reason != dead.ReasonUnacceptable || d.Error != want || d.Attempts != 1 {
		t.Errorf("dead letter %+v", d)
	}
}
