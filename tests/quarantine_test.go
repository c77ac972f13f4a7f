package tests

import (
	"context"
	"database/sql"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/operate"
	"github.com/watermill-once/once/operate/quarantine"
	"github.com/watermill-once/once/poison"
	"github.com/watermill-once/once/rabbit"
)

// Messages of foreign senders that can never be applied go to quarantine, and the other messages
// are applied.
func TestUnusableMessagesAreQuarantined(t *testing.T) {
	c := newChain(t, kit.Postgres(t).DB, kit.Rabbit(t).URL)
	c.handle("payments", placed, record("payments"))
	c.start()
	c.inject(amqp.Publishing{Body: []byte("no id\x00\xff")})
	c.inject(amqp.Publishing{MessageId: "native-1", Body: []byte("AMQP's own id")})
	c.inject(amqp.Publishing{MessageId: "native-1", Body: []byte("the same id, something else")})
	c.inject(amqp.Publishing{
		MessageId: "typed", Headers: amqp.Table{"x-death": []any{amqp.Table{"count": int64(3)}}, "n": int32(7), "raw": "\xff\x00"},
	})
	c.settle(2)
	c.eventually("two messages are in quarantine", func() bool { return c.count(`once_parked WHERE state = 'quarantined'`) == 2 })
	page, err := c.consumer.Quarantine().List(t.Context(), operate.Filter{Consumer: "payments"})
	kit.OK(t, err)
	reasons := []string{page.Rows[0].Reason, page.Rows[1].Reason}
	slices.Sort(reasons)
	if !slices.Equal(reasons, []string{poison.ReasonCollision, poison.ReasonInvalidID}) {
		t.Errorf("quarantined for %v", reasons)
	}
	for _, e := range page.Rows {
		if e.Reason == poison.ReasonInvalidID && string(e.Message.Payload) != "no id\x00\xff" {
			t.Errorf("the payload is stored as %q", e.Message.Payload)
		}
	}
}

// picky is a marshaler that cannot decode some messages.
type picky struct{ rabbit.Marshaler }

func (p picky) Unmarshal(d amqp.Delivery) (*message.Message, error) {
	if d.ContentType == "odd" {
		return nil, fmt.Errorf("content type %s", d.ContentType)
	}
	return p.Marshaler.Unmarshal(d)
}

// Trap 41. A message that the transport cannot decode goes to quarantine
// unchanged, and no handler sees it.
func TestUndecodableMessagesAreQuarantined(t *testing.T) {
	c := newChain(t, kit.Postgres(t).DB, kit.Rabbit(t).URL)
	config := c.config("payments")
	config.Marshaler = picky{}
	sub, err := rabbit.NewSubscriber(config, rabbit.SubscriberConfig{Logger: kit.Logger(t)})
	kit.OK(t, err)
	kit.OK(t, sub.SubscribeInitialize(placed))
	c.consumer.AddHandler(c.router, "payments", placed, sub, record("payments"))
	c.start()
	c.inject(amqp.Publishing{MessageId: "odd", ContentType: "odd", Body: []byte("\x00\xff")})
	c.inject(amqp.Publishing{MessageId: "fine", Body: []byte("body")})
	c.settle(1)
	c.eventually("the message is in quarantine", func() bool { return c.count(`once_parked WHERE state = 'quarantined'`) == 1 })
	page, err := c.consumer.Quarantine().List(t.Context(), operate.Filter{Consumer: "payments"})
	kit.OK(t, err)
	if e := page.Rows[0]; e.Reason != poison.ReasonUndecodable || e.Message.UUID != "odd" || string(e.Message.Payload) != "\x00\xff" {
		t.Errorf("%+v", e)
	}
}

// A message that keeps failing goes to quarantine. After its cause is fixed it
// is replayed, and takes effect once, for the consumer that failed.
func TestQuarantineAndReplay(t *testing.T) {
	c := newChain(t, kit.Postgres(t).DB, kit.Rabbit(t).URL)
	var mended atomic.Bool
	c.handle("payments", placed, func(ctx context.Context, tx *sql.Tx, msg *message.Message) ([]*message.Message, error) {
		if msg.UUID == "hopeless" && !mended.Load() {
			return nil, fmt.Errorf("the card gateway says no")
		}
		return record("payments")(ctx, tx, msg)
	})
	c.handle("inventory", placed, record("inventory"))
	c.start()
	c.publish(message.NewMessage("fine", nil), message.NewMessage("hopeless", nil))
	c.settle(3)
	entries := c.consumer.Quarantine()
	var page operate.Page[quarantine.Entry]
	c.eventually("the message is in quarantine", func() bool {
		page, _ = entries.List(t.Context(), operate.Filter{})
		return len(page.Rows) == 1
	})
	if e := page.Rows[0]; e.Consumer != "payments" || e.Attempts != 8 || !strings.Contains(e.Error, "the card gateway says no") {
		t.Errorf("entry %+v", e)
	}
	mended.Store(true)
	kit.OK(t, entries.Replay(t.Context(), operate.Act{Actor: "test", Why: "mended"}, page.Rows[0].ID))
	c.settle(4)
}
