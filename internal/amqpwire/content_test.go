package amqpwire

import (
	"bytes"
	"errors"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

func encode(p *amqp.Publishing) error {
	return new(Content).Encode(p, func(b []byte) ([]byte, error) { return AppendHeaders(b, p.Headers) })
}

func TestContentRefusesWhatAMQPCannotCarry(t *testing.T) {
	long := strings.Repeat("k", 256)
	nested := amqp.Table{"a": []any{amqp.Table{long: ""}}}
	for name, c := range map[string]struct {
		publishing amqp.Publishing
		tooLarge   bool
		names      string
	}{
		"property":           {publishing: amqp.Publishing{Type: long}, tooLarge: true, names: "type"},
		"header name":        {publishing: amqp.Publishing{Headers: amqp.Table{long: ""}}, tooLarge: true, names: "header name"},
		"nested header name": {publishing: amqp.Publishing{Headers: nested}, tooLarge: true, names: `"a"`},
		"header type":        {publishing: amqp.Publishing{Headers: amqp.Table{"a": uint64(1)}}, names: `"a"`},
		"type in an array":   {publishing: amqp.Publishing{Headers: amqp.Table{"a": []any{struct{}{}}}}, names: `"a"`},
	} {
		t.Run(name, func(t *testing.T) {
			err := encode(&c.publishing)
			e, ok := errors.AsType[*EncodeError](err)
			if !ok || e.TooLarge != c.tooLarge || !strings.Contains(err.Error(), c.names) {
				t.Errorf("got %v, want an EncodeError that names %s, too large: %v", err, c.names, c.tooLarge)
			}
		})
	}

	fits := strings.Repeat("k", 255)
	if err := encode(&amqp.Publishing{Type: fits, Headers: amqp.Table{fits: ""}}); err != nil {
		t.Errorf("255 bytes: %v", err)
	}
}

// The frames of a publish have the layout of AMQP 0-9-1, and the body is split into
// several frames.
func TestPublishFrames(t *testing.T) {
	t.Parallel()
	c := &Content{Body: []byte("0123456789abc")}
	p := amqp.Publishing{ContentType: "ct", MessageId: "id", Priority: 3, Timestamp: time.Unix(7, 0), AppId: "app"}
	if err := c.Encode(&p, func(b []byte) ([]byte, error) { return AppendTextHeader(b, "k", "v") }); err != nil {
		t.Fatal(err)
	}
	method := "\x00\x3c\x00\x28\x00\x00\x01e\x02rk\x01"
	header := "\x00\x3c\x00\x00\x00\x00\x00\x00\x00\x00\x00\x0d" + "\xb8\xc8" + "\x02ct" +
		"\x00\x00\x00\x28\x0d_once_publishS\x00\x00\x00\x0d00000000000z1" + "\x01kS\x00\x00\x00\x01v" +
		"\x02\x03" + "\x02id" + "\x00\x00\x00\x00\x00\x00\x00\x07" + "\x03app"
	want := []byte("before")
	for _, f := range []struct {
		kind    byte
		payload string
	}{{1, method}, {2, header}, {3, "01234567"}, {3, "89abc"}} {
		want = append(want, f.kind, 0x12, 0x34, 0, 0, 0, byte(len(f.payload)))
		want = append(append(want, f.payload...), 0xce)
	}
	got := appendPublish([]byte("before"), 0x1234, 35*36+1, "e", "rk", c, 16)
	if !bytes.Equal(got, want) {
		t.Errorf("got  %q\nwant %q", got, want)
	}
	if size := len(header) + 8; c.HeaderSize() != size {
		t.Errorf("c.HeaderSize is %d, want %d", c.HeaderSize(), size)
	}
}

// Header values are encoded with the types that RabbitMQ uses.
func TestValuesOfHeaders(t *testing.T) {
	t.Parallel()
	for want, value := range map[string]any{
		"S\x00\x00\x00\x01a": "a", "x\x00\x00\x00\x02\x01\x02": []byte{1, 2}, "V": nil, "t\x01": true, "t\x00": false,
		"F\x00\x00\x00\x03\x01aV": amqp.Table{"a": nil}, "A\x00\x00\x00\x02t\x01": []any{true},
		"D\x02\x00\x00\x00\x07": amqp.Decimal{Scale: 2, Value: 7}, "T\x00\x00\x00\x00\x00\x00\x00\x07": time.Unix(7, 0),
		"B\x07": byte(7), "b\xff": int8(-1), "s\xff\xfe": int16(-2), "I\x00\x00\x00\x07": 7, "I\xff\xff\xff\xfe": int32(-2),
		"l\xff\xff\xff\xff\xff\xff\xff\xfe": int64(-2), "f\x3f\xc0\x00\x00": float32(1.5), "d\x3f\xf8\x00\x00\x00\x00\x00\x00": 1.5,
	} {
		if got, err := appendValue([]byte("before"), value); err != nil || string(got) != "before"+want {
			t.Errorf("%T %v: got %q, %v, want %q", value, value, got, err, "before"+want)
		}
	}
}

// Encode sets the header with the number of the publish itself. A message that came from
// a confirm channel may have a header with the same name.
func TestForeignPublishHeaderIsNotSent(t *testing.T) {
	t.Parallel()
	got, err := AppendHeaders([]byte("before"), amqp.Table{PublishHeader: "7", "k": nil})
	if want := "before\x01kV"; err != nil || string(got) != want {
		t.Errorf("got %q and %v, want %q", got, err, want)
	}
}
