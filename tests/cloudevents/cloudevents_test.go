package cloudevents

import (
	"bytes"
	"context"
	"database/sql"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/components/cqrs"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/cloudevents/sdk-go/v2/binding"
	"github.com/cloudevents/sdk-go/v2/event"
	cehttp "github.com/cloudevents/sdk-go/v2/protocol/http"
	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/watermill-once/once"
	"github.com/watermill-once/once/eventbus/cloudevents"
	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/outbox"
	"github.com/watermill-once/once/rabbit"
)

func TestMain(m *testing.M) { kit.MainWithTables(m) }

type orderPlaced struct {
	ID string `json:"id"`
}

const eventType = "com.example.order.placed"

var marshaler = cloudevents.Marshaler{
	Data: cqrs.JSONMarshaler{
		NewUUID:      outbox.NewID,
		GenerateName: func(any) string { return eventType },
	},
	Source: "/shop",
	Attributes: func(event any) map[string]string {
		return map[string]string{"subject": event.(orderPlaced).ID, "partitionkey": "17"}
	},
}

func newEvent(t *testing.T, id, order string) event.Event {
	t.Helper()
	e := event.New()
	e.SetID(id)
	e.SetSource("https://example.com/legacy")
	e.SetType(eventType)
	e.SetSubject(order)
	e.SetTime(time.Date(2026, 1, 2, 3, 4, 5, 6000, time.UTC))
	e.SetExtension("partitionkey", "17")
	if err := e.SetData(event.ApplicationJSON, orderPlaced{order}); err != nil {
		t.Fatal(err)
	}
	return e
}

// same compares what the SDK reads with what the marshaler was given.
func same(t *testing.T, e event.Event, msg *message.Message) {
	t.Helper()
	var order orderPlaced
	if err := e.DataAs(&order); err != nil || order.ID != "order-1" {
		t.Errorf("the data are %v, %v", order, err)
	}
	if e.ID() != msg.UUID || e.Source() != "/shop" || e.Type() != eventType || e.Subject() != "order-1" ||
		e.Extensions()["partitionkey"] != "17" || e.DataContentType() != "application/json" || time.Since(e.Time()).Abs() > time.Hour {
		t.Errorf("message %s: the SDK reads\n%v", msg.UUID, e)
	}
}

// An event that the SDK has sent to RabbitMQ takes effect once, although it arrives twice: its id is the
// message's.
func TestEventsOfTheSDKTakeEffectOnce(t *testing.T) {
	t.Parallel()
	db, broker := kit.Postgres(t).DB, kit.Rabbit(t)
	if _, err := db.ExecContext(t.Context(), `CREATE TABLE payments (order_id text, source text)`); err != nil {
		t.Fatal(err)
	}
	topic := broker.Name("orders")
	sub, err := rabbit.NewSubscriber(config(broker), rabbit.SubscriberConfig{})
	if err == nil {
		err = sub.SubscribeInitialize(topic)
	}
	if err != nil {
		t.Fatal(err)
	}
	consumer, err := once.NewConsumer(db, once.ConsumerConfig{Marshaler: marshaler, Logger: kit.Logger(t)})
	if err != nil {
		t.Fatal(err)
	}
	router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
	if err != nil {
		t.Fatal(err)
	}
	once.Handle(consumer, router, "payments", topic, sub, func(ctx context.Context, tx *sql.Tx, order orderPlaced) error {
		msg, _ := once.MessageFromContext(ctx)
		_, err := tx.ExecContext(ctx, `INSERT INTO payments VALUES ($1, $2)`, order.ID, cloudevents.Attribute(msg, "source"))
		return err
	})
	channel := open(t, broker)
	for id, mode := range map[string]struct {
		prefix     string
		structured bool
	}{"binary": {"cloudEvents:", false}, "binary-jms": {"cloudEvents_", false}, "structured": {"", true}} {
		publishing, err := fromSDK(t.Context(), newEvent(t, id, id), mode.prefix, mode.structured)
		if err != nil {
			t.Fatal(err)
		}
		for range 2 {
			if err := channel.PublishWithContext(t.Context(), "", topic, false, false, publishing); err != nil {
				t.Fatal(err)
			}
		}
	}
	other := newEvent(t, "other", "other")
	other.SetType("com.example.order.lost")
	publishing, err := fromSDK(t.Context(), other, "cloudEvents:", false)
	if err == nil {
		err = channel.PublishWithContext(t.Context(), "", topic, false, false, publishing)
	}
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- once.Run(ctx, 0, router, sub) }()
	kit.Eventually(t, time.Minute, "the last event is in quarantine", func() bool {
		return count(t, db, `once_parked WHERE message_id = 'other' AND reason = 'permanent'`) == 1
	})
	kit.Eventually(t, time.Minute, "the queue is empty", func() bool {
		queue, err := channel.QueueInspect(topic) //nolint:staticcheck // passive
		if err != nil {
			t.Fatal(err)
		}
		return queue.Messages == 0
	})
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if n := count(t, db, `payments AS p JOIN once_inbox AS i ON i.message_id = p.order_id
		WHERE p.source = 'https://example.com/legacy'`); n != 3 || count(t, db, `payments`) != 3 {
		t.Errorf("%d of 3 events took effect once", n)
	}
}

func config(broker kit.Broker) amqp.Config {
	config := amqp.NewDurableQueueConfig(broker.URL)
	config.Marshaler = rabbit.Marshaler{}
	return config
}

func open(t *testing.T, broker kit.Broker) *amqp091.Channel {
	t.Helper()
	conn, err := amqp091.Dial(broker.URL)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	channel, err := conn.Channel()
	if err != nil {
		t.Fatal(err)
	}
	return channel
}

func count(t *testing.T, db *sql.DB, what string) (n int) {
	t.Helper()
	if err := db.QueryRowContext(t.Context(), `SELECT count(*) FROM `+what).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

// The SDK reads what the marshaler and rabbit.Publisher have sent, in both modes. The id in the event is
// that of the message also if the metadata were copied from another event.
func TestTheSDKReadsEventsFromRabbitMQ(t *testing.T) {
	t.Parallel()
	broker := kit.Rabbit(t)
	publisher, err := rabbit.NewPublisher(config(broker), rabbit.PublisherConfig{})
	if err != nil {
		t.Fatal(err)
	}
	defer publisher.Close()
	channel := open(t, broker)
	topic := broker.Name("orders")
	if _, err := channel.QueueDeclare(topic, true, false, false, false, nil); err != nil {
		t.Fatal(err)
	}
	for _, structured := range []bool{false, true} {
		m := marshaler
		m.Structured = structured
		msg, err := m.Marshal(orderPlaced{"order-1"})
		if err != nil {
			t.Fatal(err)
		}
		if !structured {
			msg.UUID = "copied"
		}
		if err := publisher.Publish(topic, msg); err != nil {
			t.Fatal(err)
		}
		delivery, ok, err := channel.Get(topic, true)
		if err != nil || !ok {
			t.Fatal(ok, err)
		}
		e, err := toSDK(t.Context(), delivery)
		if err != nil {
			t.Fatal(err)
		}
		same(t, e, msg)
	}
}

// Over HTTP, the SDK's own binding reads what the marshaler has written, and the marshaler reads what
// the SDK has sent.
func TestTheMarshalerAndTheSDKUnderstandEachOtherOverHTTP(t *testing.T) {
	t.Parallel()
	for _, structured := range []bool{false, true} {
		m := marshaler
		m.Structured, m.Prefix = structured, "ce-"
		msg, err := m.Marshal(orderPlaced{"order-1"})
		if err != nil {
			t.Fatal(err)
		}
		request := httptest.NewRequest(http.MethodPost, "/", bytes.NewReader(msg.Payload))
		for key, value := range msg.Metadata {
			request.Header.Set(key, value)
		}
		e, err := binding.ToEvent(t.Context(), cehttp.NewMessageFromHttpRequest(request))
		if err != nil {
			t.Fatal(err)
		}
		same(t, *e, msg)

		ctx := t.Context()
		if structured {
			ctx = binding.WithForceStructured(ctx)
		}
		request = httptest.NewRequest(http.MethodPost, "/", http.NoBody)
		sent := newEvent(t, "sdk-1", "order-2")
		if err := cehttp.WriteRequest(ctx, (*binding.EventMessage)(&sent), request); err != nil {
			t.Fatal(err)
		}
		payload, err := io.ReadAll(request.Body)
		if err != nil {
			t.Fatal(err)
		}
		got := message.NewMessage("", payload)
		for key := range request.Header {
			got.Metadata.Set(key, request.Header.Get(key))
		}
		cloudevents.TakeID(got)
		var order orderPlaced
		if err := m.Unmarshal(got, &order); err != nil || order.ID != "order-2" || got.UUID != "sdk-1" ||
			m.NameFromMessage(got) != eventType || cloudevents.Attribute(got, "subject") != "order-2" {
			t.Errorf("structured %v: message %q has %v, %v", structured, got.UUID, order, err)
		}
	}
}
