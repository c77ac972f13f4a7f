package tests

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/watermill-once/once"
	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/outbox"
	"github.com/watermill-once/once/rabbit"
	"github.com/watermill-once/once/retry"
)

// A message was dead-lettered and redelivered, so the broker has added headers. Handlers
// that copy all metadata read these headers, and the copies reach their consumer without
// them.
func TestTrap106_CopiedMetadataLeavesOutTheHeadersOfTheBroker(t *testing.T) {
	t.Parallel()
	c := newChain(t, kit.Postgres(t).DB, kit.Rabbit(t).URL)
	c.limit = 100 // without a limit, a stock subscriber and ours declare different queues with RabbitMQ 4
	var err error
	c.consumer, err = once.NewConsumer(c.db, once.ConsumerConfig{
		Logger:           kit.Logger(t),
		Check:            rabbit.Check,
		DurableConsumers: []string{"durable"},
		Retry: retry.Config{
			Policy: retry.Policy{Immediate: 1, Delayed: 3, Base: 20 * time.Millisecond}, PollInterval: 20 * time.Millisecond,
		},
	})
	kit.OK(t, err)
	handlers := []string{"direct", "durable", "stock"}
	var seen copies
	seen.failed = map[string]int{}
	for _, name := range handlers {
		declared := c.declare(name, placed)
		var sub message.Subscriber = declared
		if name == "stock" {
			if sub, err = wamqp.NewSubscriber(c.config(name), watermill.NopLogger{}); err == nil {
				err = declared.Close()
			}
			kit.OK(t, err)
		}
		c.consumer.AddHandler(c.router, name, placed, sub, seen.copy)
		c.wear(placed + "." + name)
	}
	c.handle("ledger", "copied", seen.arrive)
	c.start()
	c.eventually("all copies have arrived, or messages were given up", func() bool {
		return seen.count() == 2*len(handlers) || c.count(`once_parked WHERE state = 'quarantined'`)+c.count(`once_outbox_dead`) > 0
	})
	seen.mu.Lock()
	defer seen.mu.Unlock()
	if len(seen.arrived) != 2*len(handlers) {
		t.Errorf("%d copies have arrived, want %d", len(seen.arrived), 2*len(handlers))
	}
	for id, metadata := range seen.arrived {
		for _, key := range slices.Collect(maps.Keys(metadata)) {
			if strings.HasPrefix(key, "x-") || metadata["color"] != "red" {
				t.Errorf("%s has %q, want only what the sender wrote", id, metadata)
				break
			}
		}
	}
	for _, name := range handlers {
		m := seen.read[name]
		count := cmp.Or(m["x-delivery-count"], m["x-acquired-count"]) // RabbitMQ 4.3 counts a nack only in the second one
		if !strings.Contains(m["x-death"], `"expired"`) || count == "" || m["x-request-id"] != "17" {
			t.Errorf("the handler %s reads %q, want all headers", name, m)
		}
	}
}

// wear puts a message into a queue that has expired in another queue, and was delivered
// once before.
func (c *chain) wear(queue string) {
	c.Helper()
	conn, err := amqp.Dial(c.amqpURL)
	kit.OK(c, err)
	defer conn.Close()
	channel, err := conn.Channel()
	kit.OK(c, err)
	if _, err = channel.QueueDeclare(queue+".first", true, false, false, false, amqp.Table{
		"x-dead-letter-exchange": "", "x-dead-letter-routing-key": queue, "x-message-ttl": int32(1),
	}); err != nil {
		c.Fatal(err)
	}
	kit.OK(c, channel.PublishWithContext(c.Context(), "", queue+".first", true, false, amqp.Publishing{
		MessageId: queue, Headers: amqp.Table{"color": "red", "x-request-id": "17"},
	}))
	c.eventually("the message has expired", func() bool {
		d, ok, err := channel.Get(queue, false)
		kit.OK(c, err)
		return ok && d.Nack(false, true) == nil
	})
}

// copies contains what handlers have read, and the copies that have arrived.
type copies struct {
	mu      sync.Mutex
	failed  map[string]int              // failed calls, by the name of the handler
	read    map[string]message.Metadata // by the name of the handler
	arrived map[string]message.Metadata // by message id
}

// copy is a handler that fails twice. Then it returns a message with the metadata of its
// message, and publishes another one.
func (s *copies) copy(_ context.Context, tx *sql.Tx, msg *message.Message) ([]*message.Message, error) {
	name := message.HandlerNameFromCtx(msg.Context())
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.failed[name] < 2 {
		s.failed[name]++
		return nil, errors.New("fails, so that the message is parked")
	}
	if s.read == nil {
		s.read = map[string]message.Metadata{}
	}
	s.read[name] = maps.Clone(msg.Metadata)
	returned, published := message.NewMessage(name+" returned", nil), message.NewMessage(name+" published", nil)
	maps.Copy(returned.Metadata, msg.Metadata)
	maps.Copy(published.Metadata, msg.Metadata)
	if err := outbox.Publisher(tx).Publish("copied", published); err != nil {
		return nil, err
	}
	return []*message.Message{once.To("copied", returned)}, nil
}

func (s *copies) arrive(_ context.Context, _ *sql.Tx, msg *message.Message) ([]*message.Message, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.arrived == nil {
		s.arrived = map[string]message.Metadata{}
	}
	s.arrived[msg.UUID] = maps.Clone(msg.Metadata)
	return nil, nil
}

func (s *copies) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.arrived)
}
