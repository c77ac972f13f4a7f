package rabbit_test

import (
	"bytes"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/watermill-once/once/internal/testkit"
	"github.com/watermill-once/once/rabbit"
)

// fixedMarshaler always returns the same AMQP message.
type fixedMarshaler struct {
	amqp.DefaultMarshaler
	publishing amqp091.Publishing
}

func (m fixedMarshaler) Marshal(*message.Message) (amqp091.Publishing, error) {
	return m.publishing, nil
}

// All properties and headers that a marshaler sets reach the consumer.
func TestEveryPropertyArrives(t *testing.T) {
	t.Parallel()
	uri := brokerURL(t)
	queue := declareQueue(t, uri, nil)
	at := time.Unix(1_700_000_000, 0)
	sent := amqp091.Publishing{
		ContentType: "text/plain", ContentEncoding: "gzip", DeliveryMode: amqp091.Transient, Priority: 7,
		CorrelationId: "correlation", ReplyTo: "reply", Expiration: "100000", MessageId: "id", Timestamp: at,
		Type: "type", UserId: "guest", AppId: strings.Repeat("a", 255), Body: bytes.Repeat([]byte("body"), 100_000),
		Headers: amqp091.Table{
			"bool": true, "byte": byte(200), "int8": int8(-1), "int16": int16(-2), "int": 3, "int32": int32(-4), "int64": int64(-5),
			"float": float32(1.5), "double": 2.5, "decimal": amqp091.Decimal{Scale: 2, Value: 1250}, "text": "text\x00\xff",
			"bytes": []byte{0, 1}, "time": at, "void": nil, "table": amqp091.Table{"a": "b", "c": amqp091.Table{}},
			"array": []any{"s", int16(2), []any{nil}}, "": "no name",
		},
	}
	config := queueConfig(uri)
	config.Marshaler = fixedMarshaler{publishing: sent}
	p := newPublisher(t, config, rabbit.PublisherConfig{})
	mustBe(t, "confirmed", p.Publish(queue, newMessage("m")))

	conn, err := amqp091.Dial(uri)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	channel, err := conn.Channel()
	if err != nil {
		t.Fatal(err)
	}
	got, ok, err := channel.Get(queue, true)
	if err != nil || !ok {
		t.Fatal(ok, err)
	}
	want := sent
	want.DeliveryMode = amqp091.Persistent
	want.Headers["int"] = int32(3)
	delete(got.Headers, "_once_publish")
	received := amqp091.Publishing{
		ContentType: got.ContentType, ContentEncoding: got.ContentEncoding, DeliveryMode: got.DeliveryMode,
		Priority: got.Priority, CorrelationId: got.CorrelationId, ReplyTo: got.ReplyTo, Expiration: got.Expiration,
		MessageId: got.MessageId, Timestamp: got.Timestamp, Type: got.Type, UserId: got.UserId, AppId: got.AppId,
		Body: got.Body, Headers: got.Headers,
	}
	for name, value := range want.Headers {
		if !reflect.DeepEqual(received.Headers[name], value) {
			t.Errorf("header %q: got %#v, want %#v", name, received.Headers[name], value)
		}
	}
	received.Headers, want.Headers = nil, nil
	if !reflect.DeepEqual(received, want) {
		t.Errorf("got %+v\nwant %+v", received, want)
	}
}

// A connection that only publishes stays open. While the broker sends confirms, it sends
// no heartbeats. amqp091 does not see the confirms, but still must not close the
// connection.
func TestConnectionThatOnlyPublishesStaysAlive(t *testing.T) {
	testkit.Long(t)
	t.Parallel()
	uri := brokerURL(t)
	queue := declareQueue(t, uri, nil)
	const beat = 2 * time.Second
	config := queueConfig(uri)
	config.Connection.AmqpConfig = &amqp091.Config{Heartbeat: beat}
	for range 5 {
		h := new(heard)
		p := newPublisher(t, config, rabbit.PublisherConfig{Logger: h})
		mustBe(t, "confirmed", p.Publish(queue, newMessage("first")))
		pause, err := publishFor(p, queue, 4*beat) // amqp091 would close the connection after three heartbeat intervals at the latest
		if pause < beat {
			mustBe(t, "confirmed", err)
			mustHaveConnectedOnce(t, h)
			return
		}
		// The machine paused, so the broker has missed our heartbeats.
		t.Logf("%v passed between two messages", pause)
		_ = p.Close()
	}
	t.Fatal("no attempt had a steady stream of messages")
}

// publishFor publishes messages one after the other for the time d, or until a publish
// fails. It returns the time that the slowest publish took.
func publishFor(p *rabbit.Publisher, queue string, d time.Duration) (longest time.Duration, err error) {
	began := time.Now()
	for last := began; err == nil && last.Sub(began) < d; {
		err = p.Publish(queue, newMessage("m"))
		now := time.Now()
		longest, last = max(longest, now.Sub(last)), now
	}
	return longest, err
}
