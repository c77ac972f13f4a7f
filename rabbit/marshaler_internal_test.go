package rabbit

import (
	"context"
	"encoding/binary"
	"math"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/rabbitmq/amqp091-go"

	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/rabbit/internal/amqpwire"
)

func TestHeaderText(t *testing.T) {
	at := time.Date(2026, 2, 3, 4, 5, 6, 0, time.FixedZone("", 3600))
	for name, c := range map[string]struct {
		value any
		want  string
	}{
		"string":              {"plain", "plain"},
		"empty string":        {"", ""},
		"NUL and bad UTF-8":   {"a\x00b\xff", "a\x00b\xff"},
		"bytes":               {[]byte("a\x00b\xff"), "a\x00b\xff"},
		"nil":                 {nil, ""},
		"true":                {true, "true"},
		"false":               {false, "false"},
		"byte":                {byte(200), "200"},
		"int8":                {int8(-8), "-8"},
		"int16":               {int16(-16), "-16"},
		"int32":               {int32(-32), "-32"},
		"int":                 {7, "7"},
		"int64":               {int64(math.MinInt64), "-9223372036854775808"},
		"float32":             {float32(0.1), "0.1"},
		"float64":             {1e300, "1e+300"},
		"NaN":                 {math.NaN(), "NaN"},
		"infinity":            {math.Inf(-1), "-Inf"},
		"decimal":             {amqp091.Decimal{Scale: 2, Value: 1250}, "12.50"},
		"small decimal":       {amqp091.Decimal{Scale: 4, Value: -5}, "-0.0005"},
		"whole decimal":       {amqp091.Decimal{Value: 12}, "12"},
		"least decimal":       {amqp091.Decimal{Scale: 1, Value: math.MinInt32}, "-214748364.8"},
		"time":                {at, "2026-02-03T03:05:06Z"},
		"table":               {amqp091.Table{"b": int32(1), "a": "<x>"}, `{"a":"<x>","b":1}`},
		"array":               {[]any{nil, true, "s", []byte("b")}, `[null,true,"s","b"]`},
		"nested":              {amqp091.Table{"t": amqp091.Table{"l": []any{at, math.NaN()}}}, `{"t":{"l":["2026-02-03T03:05:06Z","NaN"]}}`},
		"decimal in a table":  {amqp091.Table{"d": amqp091.Decimal{Scale: 1, Value: 5}}, `{"d":0.5}`},
		"bad UTF-8 in a list": {[]any{"\xff\x00"}, `["\ufffd\u0000"]`},
		"empty table":         {amqp091.Table{}, `{}`},
		"nil array":           {[]any(nil), `[]`},
		"nil table":           {amqp091.Table(nil), `{}`},
		"not of AMQP":         {make(chan int), ""},
	} {
		t.Run(name, func(t *testing.T) {
			if got := headerText(c.value); got != c.want {
				t.Errorf("headerText(%#v) = %q, want %q", c.value, got, c.want)
			}
		})
	}
}

// foreignContent returns a message whose headers have types that only other clients send.
// The headers are at the top level, in a table and in an array. The headers of ownHeaders
// follow them.
func foreignContent(t *testing.T) *amqpwire.Content {
	t.Helper()
	name := func(b []byte, name string) []byte { return append(append(b, byte(len(name))), name...) }
	noName := func(b []byte, _ string) []byte { return b }
	numbers := func(b []byte, name func(b []byte, name string) []byte) []byte {
		b = append(name(b, "u"), 'u', 0xff, 0xfe)
		b = append(name(b, "i"), 'i', 0xff, 0xff, 0xff, 0xfe)
		return append(name(b, "L"), 'L', 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xfe)
	}
	sized := func(b, fields []byte) []byte {
		return append(binary.BigEndian.AppendUint32(b, uint32(len(fields))), fields...)
	}
	c := new(amqpwire.Content)
	p := amqp091.Publishing{ContentType: "a", ContentEncoding: "b", MessageId: "m"}
	kit.OK(t, c.Encode(&p, func(b []byte) ([]byte, error) {
		b = numbers(b, name)
		b = sized(append(name(b, "nested"), 'F'), numbers(nil, name))
		b = sized(append(name(b, "items"), 'A'), numbers(nil, noName))
		return amqpwire.AppendHeaders(b, ownHeaders)
	}))
	return c
}

// ownHeaders contains a value of every type that amqp091 can send.
var ownHeaders = amqp091.Table{
	"bool": true, "byte": byte(1), "int8": int8(-1), "int16": int16(-2), "int": 3, "int32": int32(-4), "int64": int64(-5),
	"float": float32(1.5), "double": 2.5, "decimal": amqp091.Decimal{Scale: 2, Value: 1250}, "text": "text\x00\xff", "bytes": []byte{0, 1},
	"time": time.Unix(1_700_000_000, 0), "void": nil, "table": amqp091.Table{"a": "b", "c": amqp091.Table{}},
	"array": []any{"s", int16(2), []any{nil}},
}

// Trap 41. A subscriber reads headers of other clients. Without this package, amqp091
// would close the connection of all subscriptions at every such delivery.
func TestTrap41_HeadersOfOtherClientsAreRead(t *testing.T) {
	t.Parallel()
	config := amqp.NewDurableQueueConfig(kit.Rabbit(t).URL)
	config.Marshaler = Marshaler{}
	s, err := NewSubscriber(config, SubscriberConfig{ReadyTimeout: time.Minute})
	kit.OK(t, err)
	defer s.Close()
	queue := kit.Broker{}.Name("q")
	messages, err := s.Subscribe(context.WithoutCancel(t.Context()), queue)
	kit.OK(t, err)

	conn, err := connect(t.Context(), config.Connection,
		dialSettings{confirmChannels: true, dialTimeout: time.Minute, writeTimeout: time.Minute, nodes: newNodes(nil)})
	kit.OK(t, err)
	defer conn.end(true)
	sender, err := conn.wire.OpenChannel(func() {})
	kit.OK(t, err)
	kit.OK(t, sender.WaitOpen())
	if !sender.Publish(1, "", queue, foreignContent(t), 4096) {
		t.Fatal("not sent")
	}
	select {
	case msg := <-messages:
		for name, want := range map[string]string{
			"u": "65534", "i": "4294967294", "L": "-2", "nested": `{"L":-2,"i":4294967294,"u":65534}`, "items": "[65534,4294967294,-2]",
			"double": "2.5", "array": `["s",2,[null]]`, "text": "text\x00\xff",
		} {
			if got := msg.Metadata[name]; got != want {
				t.Errorf("%s: got %q, want %q", name, got, want)
			}
		}
		if len(msg.Metadata) != len(ownHeaders)+6 || msg.UUID != "m" {
			t.Errorf("got %+v", msg)
		}
		msg.Ack()
	case <-time.After(time.Minute):
		t.Fatal("no message within a minute")
	}
	channel, err := conn.amqp.Channel()
	kit.OK(t, err)
	kit.Check(t, kit.Err(channel.QueueDelete(queue, false, false, false)))
}
