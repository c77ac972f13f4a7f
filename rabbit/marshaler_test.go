package rabbit_test

import (
	"errors"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/rabbitmq/amqp091-go"

	"github.com/watermill-once/once/internal/meta"
	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/outbox"
	"github.com/watermill-once/once/rabbit"
)

// arrived returns the delivery that a consumer receives for the AMQP message
// publishing.
func arrived(publishing amqp091.Publishing) amqp091.Delivery {
	return amqp091.Delivery{
		Headers: publishing.Headers, ContentType: publishing.ContentType,
		MessageId: publishing.MessageId, Body: publishing.Body,
	}
}

func unmarshal(t *testing.T, delivery amqp091.Delivery) *message.Message {
	t.Helper()
	msg, err := rabbit.Marshaler{}.Unmarshal(delivery)
	kit.OK(t, err)
	return msg
}

func TestMarshalerRoundTrip(t *testing.T) {
	msg := message.NewMessage("id-1", []byte("body\x00\xff"))
	msg.Metadata = message.Metadata{"plain": "text", "empty": "", "odd": "a\x00b\xff", "correlation_id": "c"}
	publishing, err := rabbit.Marshaler{ContentType: "application/json"}.Marshal(msg)
	kit.OK(t, err)
	if publishing.DeliveryMode != amqp091.Persistent || publishing.ContentType != "application/json" ||
		publishing.MessageId != "id-1" || publishing.Headers[amqp.DefaultMessageUUIDHeaderKey] != "id-1" {
		t.Errorf("publishing is %+v", publishing)
	}

	got := unmarshal(t, arrived(publishing))
	want := maps.Clone(msg.Metadata)
	want["once_redelivered"] = "false"
	if got.UUID != msg.UUID || string(got.Payload) != string(msg.Payload) || !maps.Equal(got.Metadata, want) {
		t.Errorf("got %s %q %v, want %v", got.UUID, got.Payload, got.Metadata, want)
	}

	stock, err := amqp.DefaultMarshaler{}.Unmarshal(arrived(publishing))
	if err != nil || !stock.Equals(msg) {
		t.Errorf("watermill-amqp's marshaler reads %v, %v", stock, err)
	}
}

// The timestamp is for tools that show messages. If the time in the metadata is not
// valid, the message has no timestamp. The timestamp of a delivery does not become
// metadata.
func TestMarshalerSetsTheTimestamp(t *testing.T) {
	for text, want := range map[string]time.Time{
		"2026-02-03T04:05:06.789Z":   time.Date(2026, 2, 3, 4, 5, 6, 789_000_000, time.UTC),
		"":                           {},
		"9999999999999-01-01T00:00Z": {},
	} {
		msg := newMessage("m")
		msg.Metadata.Set(meta.CreatedAt, text)
		publishing, err := rabbit.Marshaler{}.Marshal(msg)
		if err != nil || !publishing.Timestamp.Equal(want) {
			t.Errorf("%q becomes %v, %v", text, publishing.Timestamp, err)
		}
		delivery := arrived(publishing)
		delivery.Timestamp = time.Unix(1, 0)
		if got := unmarshal(t, delivery).Metadata[meta.CreatedAt]; got != text {
			t.Errorf("%q comes back as %q", text, got)
		}
	}
}

// A header costs the broker more than its bytes, so the two times of a forwarder share
// one. A reader also accepts the two headers of earlier versions.
func TestTimesOfTheForwarderAreOneHeader(t *testing.T) {
	const created, published = "2026-02-03T04:05:06.789Z", "2026-02-03T04:05:07.000Z"
	msg := newMessage("m")
	msg.Metadata.Set(meta.CreatedAt, created)
	msg.Metadata.Set(meta.PublishedAt, published)
	publishing, err := rabbit.Marshaler{}.Marshal(msg)
	kit.OK(t, err)
	want := amqp091.Table{"once_times": created + "/" + published, amqp.DefaultMessageUUIDHeaderKey: "m"}
	if !maps.Equal(publishing.Headers, want) {
		t.Errorf("the headers are %v, want %v", publishing.Headers, want)
	}

	for name, headers := range map[string]amqp091.Table{
		"one header":  publishing.Headers,
		"two headers": {"once_created_at": created, "once_published_at": published},
	} {
		metadata := unmarshal(t, amqp091.Delivery{Headers: headers}).Metadata
		if metadata[meta.CreatedAt] != created || metadata[meta.PublishedAt] != published || len(metadata) != 3 {
			t.Errorf("%s: the metadata is %v", name, metadata)
		}
	}
	for _, forged := range []any{
		"", "/", created, created + "/", "/" + published, created + "/now", created + "/" + published + "/", int64(1),
	} {
		metadata := unmarshal(t, amqp091.Delivery{Headers: amqp091.Table{"once_times": forged}}).Metadata
		if len(metadata) != 1 {
			t.Errorf("%v: the metadata is %v", forged, metadata)
		}
	}
}

// If a time is not valid, each of the two has its own header, and comes back unchanged.
func TestInvalidTimesComeBackUnchanged(t *testing.T) {
	for created, published := range map[string]string{
		"2026-02-03T04:05:06.789Z": "now",
		"yesterday":                "2026-02-03T04:05:06.789Z",
	} {
		msg := newMessage("m")
		msg.Metadata.Set(meta.CreatedAt, created)
		msg.Metadata.Set(meta.PublishedAt, published)
		publishing, err := rabbit.Marshaler{}.Marshal(msg)
		kit.OK(t, err)
		got := unmarshal(t, arrived(publishing)).Metadata
		if got[meta.CreatedAt] != created || got[meta.PublishedAt] != published {
			t.Errorf("%s and %s come back as %v", created, published, got)
		}
	}
}

func TestMarshalerLeavesOutALongNativeID(t *testing.T) {
	for size, native := range map[int]bool{255: true, 256: false} {
		id := strings.Repeat("i", size)
		publishing, err := rabbit.Marshaler{}.Marshal(newMessage(id))
		kit.OK(t, err)
		if (publishing.MessageId != "") != native {
			t.Errorf("%d bytes: native id is %d bytes long", size, len(publishing.MessageId))
		}
		if got := unmarshal(t, arrived(publishing)).UUID; got != id {
			t.Errorf("%d bytes: restored as %d", size, len(got))
		}
	}
}

func TestTrap32_SteeringHeadersDoNotPass(t *testing.T) {
	steering := []string{
		"CC", "BCC", "cc", "Bcc", "x-delay", "X-Death", "x-", "x-request-id", "expiration", "Expiration",
		"user-id", "User_ID", "user_id",
	}
	harmless := []string{
		"", "c", "CCC", "xray", "x_delay", "expirations", "userid", "correlation_id", "type", "traceparent",
	}
	msg := newMessage("m")
	for _, key := range steering {
		if !meta.Steering(key) {
			t.Errorf("%q steers the broker", key)
		}
		msg.Metadata.Set(key, "1")
	}
	for _, key := range harmless {
		if meta.Steering(key) {
			t.Errorf("%q does not steer the broker", key)
		}
		msg.Metadata.Set(key, "1")
	}
	publishing, err := rabbit.Marshaler{}.Marshal(msg)
	kit.OK(t, err)
	for key := range publishing.Headers {
		if meta.Steering(key) {
			t.Errorf("header %q steers the broker", key)
		}
	}
	if got := unmarshal(t, arrived(publishing)).Metadata; len(got) != len(harmless)+1 {
		t.Errorf("got %v, want the harmless ones and %s", got, "once_redelivered")
	}
}

// Trap 32. The Publisher removes headers that control the broker, whichever marshaler
// is used.
func TestTrap32_NoCopyForAnotherQueue(t *testing.T) {
	t.Parallel()
	uri := brokerURL(t)
	queue, other := declareQueue(t, uri, nil), declareQueue(t, uri, nil)
	for name, marshaler := range map[string]amqp.Marshaler{
		"ours": rabbit.Marshaler{}, "stock": amqp.DefaultMarshaler{},
	} {
		t.Run(name, func(t *testing.T) {
			config := queueConfig(uri)
			config.Marshaler = marshaler
			p := newPublisher(t, config, rabbit.PublisherConfig{})
			msg := newMessage("m")
			msg.Metadata.Set("BCC", other)
			msg.Metadata.Set("user-id", "somebody")
			msg.Metadata.Set("expiration", "soon")
			mustBe(t, "confirmed", p.Publish(queue, msg))
			if got := drain(t, uri, queue); len(got) != 1 {
				t.Errorf("queue has %v", got)
			}
			if got := drain(t, uri, other); len(got) != 0 {
				t.Errorf("the other queue has %v", got)
			}
		})
	}
}

func TestUnmarshalUsesTheNativeID(t *testing.T) {
	for name, c := range map[string]struct {
		delivery amqp091.Delivery
		want     string
	}{
		"header":          {amqp091.Delivery{MessageId: "native", Headers: amqp091.Table{amqp.DefaultMessageUUIDHeaderKey: "header"}}, "header"},
		"native":          {amqp091.Delivery{MessageId: "native"}, "native"},
		"empty header":    {amqp091.Delivery{MessageId: "native", Headers: amqp091.Table{amqp.DefaultMessageUUIDHeaderKey: ""}}, "native"},
		"header of bytes": {amqp091.Delivery{Headers: amqp091.Table{amqp.DefaultMessageUUIDHeaderKey: []byte("bytes")}}, "bytes"},
		"header is a no.": {amqp091.Delivery{Headers: amqp091.Table{amqp.DefaultMessageUUIDHeaderKey: int64(42)}}, "42"},
		"none":            {amqp091.Delivery{}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			msg := unmarshal(t, c.delivery)
			if msg.UUID != c.want {
				t.Errorf("got %q, want %q", msg.UUID, c.want)
			}
			if _, ok := msg.Metadata[amqp.DefaultMessageUUIDHeaderKey]; ok {
				t.Error("the id is also in the metadata")
			}
		})
	}
}

// Trap 81. Marshal and Unmarshal drop the keys of this module that must not reach
// another service. Unmarshal also drops unknown keys of this module. Marshal keeps such
// unknown keys, because a newer producer may have set them.
func TestTrap81_SteeringKeysDoNotPass(t *testing.T) {
	headers, metadata := amqp091.Table{}, message.Metadata{}
	keys := map[string]bool{
		"once_topic": false, "once_due_at": false, "once_edited_from": false, "once_of_tomorrow": false,
		"once_ordering_key": true, "once_tenant_id": true, "color": true,
	}
	for key := range keys {
		headers[key], metadata[key] = "x", "x"
	}
	in := unmarshal(t, amqp091.Delivery{Headers: headers}).Metadata
	msg := message.NewMessage("m", nil)
	msg.Metadata = metadata
	out, err := rabbit.Marshaler{}.Marshal(msg)
	kit.OK(t, err)
	for key, passes := range keys {
		_, came := in[key]
		_, went := out.Headers[key]
		if goes := passes || key == "once_of_tomorrow"; came != passes || went != goes {
			t.Errorf("%s: unmarshalled %v, want %v; marshalled %v, want %v", key, came, passes, went, goes)
		}
	}
}

func TestUnmarshalSetsRedeliveredAndDeliveryCount(t *testing.T) {
	for name, c := range map[string]struct {
		redelivered bool
		count       any
		acquired    any    // RabbitMQ 4.3
		want        string // delivery count; "" means that it is not set
	}{
		"first":                    {false, nil, nil, ""},
		"again":                    {true, nil, nil, ""},
		"counted":                  {true, int64(3), nil, "3"},
		"counted in 32 bits":       {true, int32(3), nil, "3"},
		"counted by RabbitMQ 4.3":  {true, nil, int64(3), "3"},
		"failures counted too":     {true, int64(1), int64(3), "3"},
		"forged on the first":      {false, int64(1000), int64(1000), ""},
		"forged as text":           {true, "1000", "1000", ""},
		"forged to less than none": {true, int64(-1), int64(-1), ""},
	} {
		t.Run(name, func(t *testing.T) {
			msg := unmarshal(t, amqp091.Delivery{Redelivered: c.redelivered, Headers: amqp091.Table{
				"x-delivery-count":    c.count,
				"x-acquired-count":    c.acquired,
				"once_redelivered":    "forged",
				"once_delivery_count": "forged",
				"_once_publish":       "17",
			}})
			if got, want := msg.Metadata["once_redelivered"] == "true", c.redelivered; got != want {
				t.Errorf("redelivered is %v, want %v", got, want)
			}
			if got := msg.Metadata["once_delivery_count"]; got != c.want {
				t.Errorf("delivery count is %q, want %q", got, c.want)
			}
			if _, ok := msg.Metadata["_once_publish"]; ok {
				t.Error("the publisher's own header is in the metadata")
			}
		})
	}
}

// Trap 41. If a message expires in a queue and is dead-lettered to another queue, the
// broker adds the header x-death: an array of tables that contain strings, numbers,
// times and arrays.
func TestTrap41_HeadersThatTheBrokerWrote(t *testing.T) {
	uri := brokerURL(t)
	grave := declareQueue(t, uri, amqp091.Table{"x-queue-type": "quorum"})
	queue := declareQueue(t, uri, amqp091.Table{
		"x-dead-letter-exchange": "", "x-dead-letter-routing-key": grave, "x-message-ttl": int32(1),
	})
	p := newPublisher(t, queueConfig(uri), rabbit.PublisherConfig{})
	mustBe(t, "confirmed", p.Publish(queue, newMessage("m")))

	channel := admin(t, uri)
	get := func() *message.Message {
		var delivery amqp091.Delivery
		eventually(t, "dead-lettered", func() (ok bool) {
			var err error
			delivery, ok, err = channel.Get(grave, false)
			kit.OK(t, err)
			return ok
		})
		msg := unmarshal(t, delivery)
		kit.OK(t, delivery.Nack(false, true))
		return msg
	}
	first := get()
	if first.UUID != "m" || first.Metadata["x-first-death-queue"] != queue ||
		!strings.Contains(first.Metadata["x-death"], `"reason":"expired"`) {
		t.Errorf("got %s with %v", first.UUID, first.Metadata)
	}
	if first.Metadata["once_redelivered"] != "false" || first.Metadata["once_delivery_count"] != "" {
		t.Errorf("first delivery: %v", first.Metadata)
	}
	get()
	third := get()
	if third.Metadata["once_redelivered"] != "true" || third.Metadata["once_delivery_count"] != "2" {
		t.Errorf("third delivery: %v", third.Metadata)
	}
	if third.Metadata["x-death"] != first.Metadata["x-death"] {
		t.Errorf("x-death has no stable form: %s, then %s", first.Metadata["x-death"], third.Metadata["x-death"])
	}
}

func FuzzUnmarshal(f *testing.F) {
	f.Add("k", "text", []byte("bytes"), int64(1), 1.5, true)
	f.Add("once_redelivered", "true", []byte{0xff, 0}, int64(-1), 0.0, false)
	f.Add("x-delivery-count", "\xff\x00", []byte(nil), int64(1<<62), -1e300, true)
	f.Fuzz(func(t *testing.T, key, text string, raw []byte, n int64, x float64, redelivered bool) {
		at := time.Unix(n%1e12, 0)
		nested := amqp091.Table{
			key: text, "raw": raw, "n": n, "x": x, "at": at, "nil": nil,
			"d": amqp091.Decimal{Scale: uint8(n), Value: int32(n)},
		}
		delivery := amqp091.Delivery{Redelivered: redelivered, MessageId: text, Body: raw, Headers: amqp091.Table{
			key: []any{nested, raw, n}, "text": text, "raw": raw, "n": n, "x": x, "at": at, "table": nested,
			"_once_publish": n,
		}}
		msg := unmarshal(t, delivery)
		if key != "text" && key != "raw" && (msg.Metadata["text"] != text || msg.Metadata["raw"] != string(raw)) {
			t.Errorf("the text was changed: %q", msg.Metadata)
		}
		if got := msg.Metadata["once_redelivered"] == "true"; got != redelivered {
			t.Errorf("redelivered is %v", got)
		}
		if again := unmarshal(t, delivery); !maps.Equal(again.Metadata, msg.Metadata) {
			t.Errorf("no stable form: %q, then %q", msg.Metadata, again.Metadata)
		}
	})
}

// Unmarshal restores a message that was marshalled, except the keys that control the
// broker, and the keys that the subscriber sets.
func FuzzRoundTrip(f *testing.F) {
	f.Add("id", "key", "value", "once_redelivered", "true", []byte("payload"))
	f.Add("", "BCC", "queue", "_watermill_message_uuid", "other", []byte(nil))
	f.Add("a\x00\xff", "x-death", "[]", "once_delivery_count", "-1", []byte{0, 0xff})
	f.Add("id", "User_Id", "guest", "Expiration", "1", []byte("{}"))
	f.Fuzz(func(t *testing.T, id, key, value, other, otherValue string, payload []byte) {
		msg := message.NewMessage(id, payload)
		msg.Metadata = message.Metadata{key: value, other: otherValue}
		publishing, err := rabbit.Marshaler{}.Marshal(msg)
		kit.OK(t, err)
		for name := range publishing.Headers {
			if meta.Steering(name) {
				t.Errorf("header %q steers the broker", name)
			}
		}
		got := unmarshal(t, arrived(publishing))
		want := maps.Clone(msg.Metadata)
		maps.DeleteFunc(want, func(name, _ string) bool {
			switch name {
			case "_watermill_message_uuid", "_once_publish":
				return true
			}
			return meta.Steering(name) || !meta.Travels(name)
		})
		want["once_redelivered"] = "false"
		if got.UUID != id || string(got.Payload) != string(payload) || !maps.Equal(got.Metadata, want) {
			t.Errorf("%q %q %q was restored as %q %q %q", id, payload, want, got.UUID, got.Payload, got.Metadata)
		}
	})
}

func TestCheckNamesWhatRabbitMQCannotTake(t *testing.T) {
	long := strings.Repeat("x", 256)
	controls := func(key string) string { return `metadata "` + key + `" would control RabbitMQ: rename it` }
	for name, c := range map[string]struct {
		metadata message.Metadata
		kind     error
		want     string
	}{
		"none":     {nil, nil, ""},
		"harmless": {message.Metadata{"xylophone": "not x-", "account": "not cc", long[:255]: strings.Repeat("y", 60<<10)}, nil, ""},
		"copies":   {message.Metadata{"BCC": "hunter2"}, rabbit.ErrInvalid, controls("BCC")},
		"a user":   {message.Metadata{"User_Id": "hunter2"}, rabbit.ErrInvalid, controls("User_Id")},
		"lifetime": {message.Metadata{"expiration": "1"}, rabbit.ErrInvalid, controls("expiration")},
		"several": {
			message.Metadata{"x-b": "1", "cc": "q", "x-c": "", "bcc": "", "x-a": ""},
			rabbit.ErrInvalid,
			strings.Join([]string{controls("bcc"), controls("cc"), controls("x-a"), controls("x-b"), controls("x-c")}, "; "),
		},
		"long name": {message.Metadata{long: ""}, rabbit.ErrTooLarge, `metadata "` + long[:64] + `"... is a key of 256 bytes, the limit is 255`},
		"much":      {message.Metadata{"a": strings.Repeat("y", 64<<10)}, rabbit.ErrTooLarge, `metadata has 65543 bytes, the limit is 65536`},
	} {
		msg := newMessage("m")
		msg.Metadata = c.metadata
		err := rabbit.Check("topic", msg)
		if c.kind == nil {
			if err != nil {
				t.Errorf("%s: %v", name, err)
			}
			continue
		}
		var unacceptable interface{ Unacceptable() bool }
		if !errors.Is(err, c.kind) || err.Error() != c.kind.Error()+": "+c.want {
			t.Errorf("%s: got %v, want %s", name, err, c.want)
		}
		if !errors.As(err, &unacceptable) || !unacceptable.Unacceptable() {
			t.Errorf("%s: %v is not unacceptable", name, err)
		}
	}
}

// Trap 32. If outbox.Config.Check is rabbit.Check, the producer gets the error, and no
// message is stored.
func TestOutboxWithCheckRefusesSteeringMetadata(t *testing.T) {
	box, err := outbox.New(outbox.Config{Check: rabbit.Check})
	kit.OK(t, err)
	for _, key := range []string{"BCC", "cc", "X-Delay", "x-request-id", "user-id", "User_Id", "expiration"} {
		msg := newMessage("m")
		msg.Metadata.Set(key, "1")
		_, _, err := box.Statements(t.Context(), "topic", msg)
		if !errors.Is(err, outbox.ErrInvalid) || !errors.Is(err, rabbit.ErrInvalid) || !strings.Contains(err.Error(), key) {
			t.Errorf("%s: %v", key, err)
		}
	}
}
