package rabbit_test

import (
	"bytes"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"sort"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/rabbitmq/amqp091-go"

	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/rabbit"
)

func TestPublishConfirms(t *testing.T) {
	t.Parallel()
	uri := brokerURL(t)
	topic := uniqueName("t")
	queue := bind(t, uri, topic)
	p := newPublisher(t, topicConfig(uri), rabbit.PublisherConfig{})

	if err := p.Publish(topic); err != nil {
		t.Errorf("no messages: %v", err)
	}
	kit.OK(t, p.Publish(topic, numbered("m", 3000)...))
	if got := drain(t, uri, queue); len(got) != 3000 {
		t.Errorf("%d messages in the queue, want 3000", len(got))
	}
}

func TestTrap07_AFullQueueNacks(t *testing.T) {
	uri := brokerURL(t)
	queue := declareQueue(t, uri, amqp091.Table{"x-max-length": int32(1), "x-overflow": "reject-publish"})
	p := newPublisher(t, queueConfig(uri), rabbit.PublisherConfig{})

	kit.OK(t, p.Publish(queue, newMessage("first")))
	err := p.Publish(queue, newMessage("second"))
	mustBe(t, "refused", err)
	if !errors.Is(err, rabbit.ErrNacked) {
		t.Errorf("got %v, want ErrNacked", err)
	}
}

func TestTrap08_UnroutableIsReturned(t *testing.T) {
	uri := brokerURL(t)
	p := newPublisher(t, topicConfig(uri), rabbit.PublisherConfig{})

	topic := uniqueName("nobody-bound")
	err := p.Publish(topic, newMessage("lost"))
	mustBe(t, "refused", err)
	mustHaveCode(t, 312, err)
	want := fmt.Sprintf(`rabbit: returned as unroutable: message "lost", topic %[1]q, exchange %[1]q, routing key "": 312: NO_ROUTE; `+
		`no queue receives the message: declare a queue, and bind it to the exchange with this routing key`, topic)
	if !errors.Is(err, rabbit.ErrReturned) || err.Error() != want {
		t.Errorf("got  %v\nwant %s", err, want)
	}
}

func TestTrap14_AlwaysMandatoryAndPersistent(t *testing.T) {
	uri := brokerURL(t)
	queue := declareQueue(t, uri, nil)
	config := amqp.NewNonDurableQueueConfig(uri)
	config.Marshaler = amqp.DefaultMarshaler{NotPersistentDeliveryMode: true}
	p := newPublisher(t, config, rabbit.PublisherConfig{})

	kit.OK(t, p.Publish(queue, newMessage("m")))
	delivery, _, err := admin(t, uri).Get(queue, true)
	kit.OK(t, err)
	if delivery.DeliveryMode != amqp091.Persistent {
		t.Errorf("delivery mode %d, want persistent", delivery.DeliveryMode)
	}
	mustBe(t, "refused", p.Publish(uniqueName("no-such-queue"), newMessage("m")))
}

// The error of a batch contains the outcome of every message. Its methods describe all
// messages, not only the first one.
func TestPublishNamesEveryFailedMessage(t *testing.T) {
	t.Parallel()
	uri := brokerURL(t)
	queue := declareQueue(t, uri, amqp091.Table{"x-max-length": int32(2), "x-overflow": "reject-publish"})
	p := newPublisher(t, queueConfig(uri), rabbit.PublisherConfig{})

	tooLarge := newMessage("large")
	tooLarge.Metadata.Set("blob", strings.Repeat("x", 200_000))
	err := p.Publish(queue, newMessage("a"), newMessage("b"), newMessage("c"), tooLarge)
	if got := outcomeOf(err); got != "unknown" {
		t.Errorf("the batch as a whole is %s, want unknown: one message is refused and one unacceptable", got)
	}
	if text := err.Error(); !strings.Contains(text, `"c"`) || !strings.Contains(text, `"large"`) ||
		strings.Contains(text, `"a"`) {
		t.Errorf("the error does not name exactly c and large: %s", text)
	}
	if !errors.Is(err, rabbit.ErrNacked) || !errors.Is(err, rabbit.ErrTooLarge) {
		t.Errorf("the error does not contain both: %v", err)
	}
	mustBe(t, "refused", p.Publish(queue, newMessage("d"), newMessage("e")))
}

// Trap 74. Routable and unroutable messages alternate. The return of a message must be
// processed before its ack.
func TestTrap74_ReturnsAreProcessedBeforeTheirAcks(t *testing.T) {
	t.Parallel()
	uri := brokerURL(t)
	routed := declareQueue(t, uri, nil)
	p := newPublisher(t, queueConfig(uri), rabbit.PublisherConfig{Window: 500})

	const each = 10_000
	var all outcomes
	for i := range each {
		all.publish(p, routed, newMessage(fmt.Sprint("routed-", i)))
		all.publish(p, "no-such-queue", newMessage(fmt.Sprint("lost-", i)))
	}
	wrong := 0
	for id, err := range all.wait(t) {
		want := "confirmed"
		if strings.HasPrefix(id, "lost-") {
			want = "refused"
		}
		if got := outcomeOf(err); got != want {
			if wrong++; wrong == 1 {
				t.Errorf("%s is %s (%v), want %s", id, got, err, want)
			}
		}
	}
	if wrong > 0 {
		t.Errorf("%d of %d are wrong", wrong, 2*each)
	}
	if got := drain(t, uri, routed); len(got) != each {
		t.Errorf("%d in the queue, want %d", len(got), each)
	}
}

func TestTrap74_OneIdOnTwoTopics(t *testing.T) {
	t.Parallel()
	uri := brokerURL(t)
	routed := declareQueue(t, uri, nil)
	p := newPublisher(t, queueConfig(uri), rabbit.PublisherConfig{})

	for i := range 200 {
		id := fmt.Sprint("same-", i)
		var one, other outcomes
		if i%2 == 0 {
			one.publish(p, "no-such-queue", newMessage(id))
		}
		other.publish(p, routed, newMessage(id))
		if i%2 == 1 { // the other message is unconfirmed when this one is returned
			one.publish(p, "no-such-queue", newMessage(id))
		}
		mustBe(t, "refused", one.wait(t)[id])
		mustBe(t, "confirmed", other.wait(t)[id])
	}
}

func TestTrap10_HeadersUpToTheFrameSizeAreSent(t *testing.T) {
	uri := brokerURL(t)
	queue := declareQueue(t, uri, nil)
	h := new(heard)
	p := newPublisher(t, queueConfig(uri), rabbit.PublisherConfig{Logger: h})

	confirmed, refused := 0, 0
	for size := 130_500; size < 131_100; size += 7 {
		msg := newMessage("m")
		msg.Metadata.Set("k", strings.Repeat("x", size))
		err := p.Publish(queue, msg)
		switch outcomeOf(err) {
		case "confirmed":
			confirmed = size
		case "unacceptable":
			if refused == 0 {
				refused = size
			}
			if !errors.Is(err, rabbit.ErrTooLarge) {
				t.Errorf("got %v, want ErrTooLarge", err)
			}
		default:
			t.Fatalf("header of %d bytes: %v", size, err)
		}
	}
	if confirmed == 0 || refused != confirmed+7 {
		t.Errorf("confirmed up to %d, refused from %d", confirmed, refused)
	}
	mustHaveConnectedOnce(t, h)
}

// arrayMarshaler sends a header that is an array of n equal values.
type arrayMarshaler struct {
	amqp.DefaultMarshaler
	value any
	n     int
}

func (m *arrayMarshaler) Marshal(*message.Message) (amqp091.Publishing, error) {
	return amqp091.Publishing{Headers: amqp091.Table{"array": slices.Repeat([]any{m.value}, m.n)}}, nil
}

// Trap 10. For each type of header value, the broker must accept the largest header
// that the Publisher accepts.
func TestTrap10_SizesOfAllTypes(t *testing.T) {
	t.Parallel()
	uri := brokerURL(t)
	queue := declareQueue(t, uri, nil)
	h := new(heard)
	marshaler := new(arrayMarshaler)
	config := queueConfig(uri)
	config.Marshaler = marshaler
	p := newPublisher(t, config, rabbit.PublisherConfig{Logger: h})

	all := []any{
		"text",
		amqp091.Table{"k": "v", "nil": nil},
		[]any{"s", int16(2)},
		nil, true, byte(1), int8(1), int16(1), int(1), int32(1), int64(1), float32(1), 1.0,
		amqp091.Decimal{},
		time.Now(), []byte("bytes"),
	}
	for _, marshaler.value = range all[:kit.Sized(3, len(all))] {
		over := sort.Search(140_000, func(n int) bool {
			marshaler.n = n
			err := p.Publish(queue, newMessage("m"))
			if got := outcomeOf(err); got != "confirmed" && got != "unacceptable" {
				t.Fatalf("%d of %T: %v", n, marshaler.value, err)
			}
			return err != nil
		})
		if over < 5000 {
			t.Errorf("%T: only %d fit", marshaler.value, over-1)
		}
	}
	mustHaveConnectedOnce(t, h)
}

func TestTrap10_OversizedNamesAreNotSent(t *testing.T) {
	uri := brokerURL(t)
	h := new(heard)
	config := queueConfig(uri)
	queue := declareQueue(t, uri, nil)
	p := newPublisher(t, config, rabbit.PublisherConfig{Logger: h})

	mustBe(t, "unacceptable", p.Publish(strings.Repeat("k", 256), newMessage("m")))
	longKey := newMessage("m")
	longKey.Metadata.Set(strings.Repeat("h", 256), "v")
	mustBe(t, "unacceptable", p.Publish(queue, longKey))
	longID := newMessage(strings.Repeat("i", 300)) // only the native message id is left out, because it is too long
	mustBe(t, "confirmed", p.Publish(queue, longID))
	mustHaveConnectedOnce(t, h)

	config = topicConfig(uri)
	exchange := newPublisher(t, config, rabbit.PublisherConfig{})
	mustBe(t, "unacceptable", exchange.Publish(strings.Repeat("e", 256), newMessage("m")))
}

func mustHaveConnectedOnce(t *testing.T, h *heard) {
	t.Helper()
	if lines := h.all(); len(lines) != 1 || !strings.HasPrefix(lines[0], connectedLine) {
		t.Errorf("log is %q, want only the line of the connection", lines)
	}
}

func TestLargeBodies(t *testing.T) {
	uri := brokerURL(t)
	queue := declareQueue(t, uri, nil)
	p := newPublisher(t, queueConfig(uri), rabbit.PublisherConfig{WindowBytes: 1 << 20})

	body := bytes.Repeat([]byte("0123456789abcdef"), 3<<16) // 3 MiB exceed WindowBytes
	for range 3 {
		var all outcomes
		all.publish(p, queue, message.NewMessage("large", body))
		for _, msg := range numbered("small", 50) {
			all.publish(p, queue, msg)
		}
		for id, err := range all.wait(t) {
			if err != nil {
				t.Errorf("%s: %v", id, err)
			}
		}
	}
	delivery, _, err := admin(t, uri).Get(queue, true)
	kit.OK(t, err)
	if !bytes.Equal(delivery.Body, body) {
		t.Error("the body was changed")
	}
}

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
	kit.OK(t, err)
	defer conn.Close()
	channel, err := conn.Channel()
	kit.OK(t, err)
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
	kit.Long(t)
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
