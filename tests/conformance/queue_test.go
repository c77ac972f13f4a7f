package conformance

import (
	"context"
	"database/sql"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/watermill-once/once/internal/test/kit"
)

// queue is a transport that delivers messages at least once. It keeps them in a table, so they
// remain when the process ends. Like RabbitMQ, it prefetches messages, and marks redelivered
// messages.
type queue struct {
	db       *sql.DB
	inFlight int // maximum number of unacked messages
}

const queueTable = `CREATE TABLE queue (
	message_id TEXT PRIMARY KEY, delivered INTEGER NOT NULL DEFAULT 0, acked INTEGER NOT NULL DEFAULT 0)`

func (q queue) Subscribe(ctx context.Context, _ string) (<-chan *message.Message, error) {
	out := make(chan *message.Message)
	go func() {
		defer close(out)
		tick := time.NewTicker(5 * time.Millisecond)
		defer tick.Stop()
		for {
			for together := range slices.Chunk(q.prefetch(ctx), q.inFlight) {
				if !q.hand(ctx, out, together) {
					return
				}
			}
			select {
			case <-tick.C:
			case <-ctx.Done():
				return
			}
		}
	}()
	return out, nil
}

// hand delivers messages, and waits until they are acked or nacked, or until ctx ends.
func (q queue) hand(ctx context.Context, out chan<- *message.Message, msgs []*message.Message) bool {
	for _, msg := range msgs {
		reach("receive", before)
		select {
		case out <- msg:
		case <-ctx.Done():
			return false
		}
	}
	for _, msg := range msgs {
		select {
		case <-msg.Acked():
			reach("ack", before)
			q.exec(`UPDATE queue SET acked = 1 WHERE message_id = $1`, msg.UUID)
			reach("ack", after)
		case <-msg.Nacked():
		case <-ctx.Done():
			return false // the next process gets an unacked message again
		}
	}
	return true
}

func (q queue) prefetch(ctx context.Context) []*message.Message {
	rows, err := q.db.QueryContext(ctx, `SELECT message_id, delivered FROM queue WHERE acked = 0 ORDER BY message_id`)
	if err != nil {
		return nil // either the consumer shuts down, or the caller fetches again
	}
	defer rows.Close()
	var all []*message.Message
	for rows.Next() {
		var id string
		var delivered int
		if rows.Scan(&id, &delivered) != nil {
			return nil
		}
		msg := newMessage(id)
		if delivered > 0 {
			msg.Metadata.Set("once_redelivered", "true")
		}
		all = append(all, msg)
	}
	if rows.Err() != nil {
		return nil
	}
	_ = rows.Close()
	for _, msg := range all {
		q.exec(`UPDATE queue SET delivered = 1 WHERE message_id = $1`, msg.UUID)
	}
	return all
}

func (q queue) exec(query string, args ...any) {
	if _, err := q.db.Exec(query, args...); err != nil {
		panic(err)
	}
}

func (q queue) Close() error { return nil }

// newQueue declares a new queue. It returns the name of the queue, and a channel to the
// broker.
func newQueue(t *testing.T, broker kit.Broker) (string, *amqp.Channel) {
	t.Helper()
	conn, err := amqp.Dial(broker.URL)
	kit.OK(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	channel, err := conn.Channel()
	kit.OK(t, err)
	name := broker.Name(consumer)
	kit.OK(t, kit.Err(channel.QueueDeclare(name, true, false, false, false, nil)))
	t.Cleanup(func() { _, _ = channel.QueueDelete(name, false, false, false) })
	return name, channel
}

func publish(ctx context.Context, channel *amqp.Channel, queue string, msg *message.Message) error {
	headers := amqp.Table{}
	for key, value := range msg.Metadata {
		headers[key] = value
	}
	return channel.PublishWithContext(ctx, "", queue, false, false,
		amqp.Publishing{MessageId: msg.UUID, Headers: headers, Body: msg.Payload, DeliveryMode: amqp.Persistent})
}

// passing is a subscriber that kills the process if the armed point is one of its
// deliveries or acks.
type passing struct{ message.Subscriber }

func (p passing) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	in, err := p.Subscriber.Subscribe(ctx, topic)
	if err != nil {
		return nil, err
	}
	out := make(chan *message.Message)
	go func() {
		defer close(out)
		for msg := range in {
			reach("receive", before)
			passed := msg.Copy()
			passed.SetContext(msg.Context())
			go answer(msg, passed)
			out <- passed
		}
	}()
	return out, nil
}

// answer waits until passed, which is a copy of msg, is acked or nacked.
// Then it acks or nacks msg.
func answer(msg, passed *message.Message) {
	select {
	case <-passed.Acked():
		reach("ack", before)
		msg.Ack()
		reach("ack", after) // the ack may not have reached the broker
	case <-passed.Nacked():
		msg.Nack()
	}
}

// messages are the ids of the messages to handle. A test chooses a point in the code.
// The first message that reaches this point ends the process.
var messages = []string{"m1", "m2", "m3"}

// idsOfRound returns the ids of the messages of the given round. Each round uses a different ordering
// key and aggregate.
func idsOfRound(round int) (ids []string) {
	for _, id := range messages {
		ids = append(ids, strconv.Itoa(round)+id)
	}
	return ids
}

// placeOf returns the round of a message, and its index in messages. For other messages
// the index is negative.
func placeOf(id string) (round string, n int) {
	round, name, _ := strings.Cut(id, "m")
	return round, slices.Index(messages, "m"+name)
}

// newMessage returns a message with an ordering key and a version. These matter only to
// consumers that keep an order. The versions of m1, m2, m3 are 2, 3, 1. Messages whose
// handler fails have a different ordering key.
func newMessage(id string) *message.Message {
	msg := message.NewMessage(id, []byte("body of "+id))
	round, n := placeOf(id)
	msg.Metadata.Set("once_ordering_key", "key"+round)
	if n >= 0 {
		msg.Metadata.Set("once_aggregate_type", "order")
		msg.Metadata.Set("once_aggregate_id", "17"+round)
		msg.Metadata.Set("once_aggregate_version", strconv.Itoa((n+1)%len(messages)+1))
	}
	if id == hopeless {
		for b := range 256 {
			msg.Payload = append(msg.Payload, byte(b), 0)
		}
		msg.Metadata.Set("note", "Ωμέγα \"quoted\"\n")
	}
	return msg
}
