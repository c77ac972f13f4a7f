package dropin

import (
	"context"
	"database/sql"
	"encoding/json"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/watermill-once/once/dedup"
	"github.com/watermill-once/once/durable"
	"github.com/watermill-once/once/embedded"
	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/outbox"
	"github.com/watermill-once/once/rabbit"
)

// forged contains headers that a foreign sender sets. travels says whether a produced message that
// copies the metadata may keep the header.
var forged = map[string]struct {
	value   string
	travels bool
}{
	"once_topic":          {"bank.refunds", false},
	"once_due_at":         {"9999-12-31T00:00:00Z", false},
	"once_redelivered":    {"true", false},
	"once_edited_from":    {"m0", false},
	"once_of_tomorrow":    {"x", false}, // a key of a later version
	"once_delivery_count": {"99", false},
	"once_created_at":     {"2001-01-01T00:00:00.000Z", false},
	"once_published_at":   {"2001-01-01T00:00:00.000Z", false},
	"once_times":          {"2001-01-01T00:00:00.000Z/2001-01-01T00:00:00.000Z", false},
	"once_copied":         {"true", false},

	// Watermill's package components/delay sets both.
	"_watermill_delayed_until": {"2999-12-31T00:00:00Z", false},
	"_watermill_delayed_for":   {"5m0s", false},

	// Headers of a broker, and others that a broker would refuse or obey.
	"x-delivery-count":    {"3", false},
	"x-death":             {"[]", false},
	"x-first-death-queue": {"q", false},
	"x-request-id":        {"17", false},
	"expiration":          {"60000", false},

	"once_ordering_key":      {"key", true},
	"once_tenant_id":         {"acme", true},
	"once_aggregate_type":    {"order", true},
	"once_aggregate_id":      {"17", true},
	"once_aggregate_version": {"3", true},
	"once_event_type":        {"placed", true},
	"once_causation_id":      {"m0", true},

	"traceparent": {"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", true},
	"color":       {"red", true},
}

// Trap 81. Each new key in internal/meta must be added to forged, with a value for travels.
func TestEveryMetadataKeyIsInTheForgedMessage(t *testing.T) {
	parsed, err := parser.ParseFile(token.NewFileSet(), "../../internal/meta/keys.go", nil, 0)
	kit.OK(t, err)
	found := 0
	ast.Inspect(parsed, func(n ast.Node) bool {
		literal, ok := n.(*ast.BasicLit)
		if !ok || literal.Kind != token.STRING {
			return true
		}
		found++
		key, err := strconv.Unquote(literal.Value)
		if _, ok := forged[key]; err != nil || !ok {
			t.Errorf("forged has no %s", literal.Value)
		}
		return true
	})
	if found == 0 {
		t.Error("keys.go has no keys")
	}
}

// source is a source of deliveries: its subscriber, and a function by which a
// foreign sender publishes a message with headers.
type source struct {
	subscriber message.Subscriber
	publish    func(id string, headers map[string]string) error
}

// sources contains a function for each source. Messages that are published after the
// call of this function wait for the subscriber.
var sources = map[string]func(b *bench, url, topic string) source{
	"rabbit": func(b *bench, url, topic string) source {
		return b.fromRabbit(url, topic, rabbit.Marshaler{})
	},
	"rabbit with the stock marshaler": func(b *bench, url, topic string) source {
		return b.fromRabbit(url, topic, wamqp.DefaultMarshaler{})
	},
	"stock": func(b *bench, url, topic string) source {
		config := wamqp.NewDurableQueueConfig(url)
		sub, err := wamqp.NewSubscriber(config, watermill.NopLogger{})
		if err == nil {
			err = sub.SubscribeInitialize(topic)
		}
		kit.OK(b, err)
		return source{sub, b.stranger(url, topic)}
	},
	"embedded": func(b *bench, _, topic string) source {
		transport, err := embedded.New(b.db, embedded.Config{})
		kit.OK(b, err)
		return source{transport.Subscriber(), func(id string, headers map[string]string) error {
			msg := message.NewMessage(id, nil)
			maps.Copy(msg.Metadata, headers)
			return transport.Publish(topic, msg)
		}}
	},
}

func (b *bench) fromRabbit(url, topic string, marshaler wamqp.Marshaler) source {
	b.Helper()
	config := wamqp.NewDurableQueueConfig(url)
	config.Marshaler = marshaler
	sub, err := rabbit.NewSubscriber(config, rabbit.SubscriberConfig{})
	if err == nil {
		err = sub.SubscribeInitialize(topic)
	}
	kit.OK(b, err)
	return source{sub, b.stranger(url, topic)}
}

// stranger returns a function that publishes with a plain AMQP client.
func (b *bench) stranger(url, queue string) func(id string, headers map[string]string) error {
	b.Helper()
	conn, err := amqp.Dial(url)
	kit.OK(b, err)
	b.Cleanup(func() { _ = conn.Close() })
	channel, err := conn.Channel()
	kit.OK(b, err)
	return func(id string, headers map[string]string) error {
		table := amqp.Table{"_watermill_message_uuid": id}
		for key, value := range headers {
			table[key] = value
		}
		return channel.PublishWithContext(b.Context(), "", queue, true, false,
			amqp.Publishing{DeliveryMode: amqp.Persistent, Headers: table})
	}
}

// copied returns a new message with the metadata of msg, as many handlers for
// Watermill do.
func copied(msg *message.Message, suffix string) *message.Message {
	produced := message.NewMessage(msg.UUID+suffix, nil)
	maps.Copy(produced.Metadata, msg.Metadata)
	return produced
}

// passOn is a handler that returns a message and publishes another message
// itself.
func passOn(tx *sql.Tx, msg *message.Message) ([]*message.Message, error) {
	return []*message.Message{copied(msg, " returned")}, outbox.Publisher(tx).Publish(produced, copied(msg, " published"))
}

const produced = "produced"

// handlers are the ways to add a handler.
var handlers = map[string]func(b *bench) (message.HandlerMiddleware, message.HandlerFunc){
	"one": func(b *bench) (message.HandlerMiddleware, message.HandlerFunc) {
		return b.inbox.Middleware, single
	},
	"batch": func(b *bench) (message.HandlerMiddleware, message.HandlerFunc) {
		return b.inbox.BatchMiddleware, single
	},
	"together": func(b *bench) (message.HandlerMiddleware, message.HandlerFunc) {
		return func(message.HandlerFunc) message.HandlerFunc {
			return b.inbox.BatchHandler(func(_ context.Context, tx *sql.Tx, msgs []*message.Message) (all []*message.Message, err error) {
				for _, msg := range msgs {
					produced, err := passOn(tx, msg)
					if err != nil {
						return nil, err
					}
					all = append(all, dedup.CausedBy(msg, produced[0]))
				}
				return all, nil
			})
		}, single
	},
}

func single(msg *message.Message) ([]*message.Message, error) {
	tx, _ := dedup.TxFromContext(msg.Context())
	return passOn(tx, msg)
}

// Trap 81. Headers of a foreign sender do not control the messages that a handler produces, with
// any transport and any kind of handler.
func TestForeignHeadersDoNotControlProducedMessages(t *testing.T) {
	t.Parallel()
	all := map[string]string{}
	sent := map[string]map[string]string{"all": all}
	for key, f := range forged {
		sent[key] = map[string]string{key: f.value}
		all[key] = f.value
	}
	broker := kit.Rabbit(t)
	for from, newSource := range sources {
		t.Run(from, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, from)
			storage, err := durable.New(b.db, durable.Config{})
			kit.OK(t, err)
			publish := map[string]func(id string, headers map[string]string) error{}
			for how, newHandler := range handlers {
				for _, how := range []string{how, how + ", durable"} {
					topic := broker.Name(how) // all cases share the virtual host
					source := newSource(b, broker.URL, topic)
					sub := source.subscriber
					if strings.HasSuffix(how, "durable") && from != "embedded" { // the embedded transport stores messages first in any case
						sub = storage.Subscriber(sub)
					}
					middleware, handle := newHandler(b)
					b.router.AddHandler(how, topic, b.retries.Subscriber(how, sub), produced, nobody{}, handle).
						AddMiddleware(b.quarantine.Middleware, b.retries.Middleware, middleware)
					publish[how] = source.publish
				}
			}
			b.start()
			for how, publish := range publish {
				for id, headers := range sent {
					kit.OK(t, publish(how+" "+id, headers))
				}
			}
			want := 2 * len(sent) * len(publish)
			kit.Eventually(t, time.Minute, "each message was handled, or was given up on", func() bool {
				return b.count(`once_outbox`)+2*b.count(`once_parked WHERE state = 'quarantined'`) >= want
			})
			for how := range publish {
				for id, headers := range sent {
					b.check(how+" "+id, " returned", headers)
					b.check(how+" "+id, " published", headers)
				}
			}
		})
	}
}

// check checks the topic, the due time and the metadata of a produced message in the outbox.
func (b *bench) check(id, suffix string, headers map[string]string) {
	b.Helper()
	var (
		topic, text string
		due         sql.NullTime
		key         sql.NullString
	)
	row := b.db.QueryRowContext(b.Context(), `SELECT topic, due_at, metadata, ordering_key FROM once_outbox WHERE message_id = $1`, id+suffix)
	if err := row.Scan(&topic, &due, &text, &key); err != nil {
		b.Errorf("%s%s: %v", id, suffix, err)
		return
	}
	metadata := map[string]string{}
	kit.OK(b, json.Unmarshal([]byte(text), &metadata))
	if topic != produced || due.Valid {
		b.Errorf("%s%s goes to %q, due at %v", id, suffix, topic, due.Time.Format(time.RFC3339))
	}
	if key.String != headers["once_ordering_key"] {
		b.Errorf("%s%s has the ordering key %q, want %q", id, suffix, key.String, headers["once_ordering_key"])
	}
	for key := range metadata {
		if f, ok := forged[key]; ok && !f.travels {
			b.Errorf("%s%s has %s", id, suffix, key)
		}
	}
	for key, value := range headers {
		if key == "once_causation_id" && suffix == " returned" {
			value = id // the handled message is the cause
		}
		if forged[key].travels && metadata[key] != value {
			b.Errorf("%s%s has %s as %q, want %q", id, suffix, key, metadata[key], value)
		}
	}
}

// nobody is a publisher that must not be called, because the inbox stores
// produced messages.
type nobody struct{}

func (nobody) Publish(topic string, _ ...*message.Message) error {
	panic("the router publishes to " + topic)
}

func (nobody) Close() error { return nil }
