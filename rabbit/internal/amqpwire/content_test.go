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

var allTypes = amqp.Table{
	"bool": true, "byte": byte(1), "int8": int8(-1), "int16": int16(-2), "int": 3, "int32": int32(-4), "int64": int64(-5),
	"float": float32(1.5), "double": 2.5, "decimal": amqp.Decimal{Scale: 2, Value: 1250}, "text": "text\x00\xff", "bytes": []byte{0, 1},
	"time": time.Unix(1_700_000_000, 0), "void": nil, "table": amqp.Table{"a": "b", "c": amqp.Table{}},
	"array": []any{"s", int16(2), []any{nil}},
}

// textHeader finds a header after headers of all other types.
func TestTextHeader(t *testing.T) {
	encoded := func(p *amqp.Publishing, fields amqp.Table) []byte {
		var c Content
		if err := c.Encode(p, func(b []byte) ([]byte, error) {
			b, err := AppendHeaders(b, fields)
			if err != nil {
				return b, err
			}
			return AppendTextHeader(b, "wanted", "found")
		}); err != nil {
			t.Fatal(err)
		}
		putNumber(c.properties[c.numberAt:], 35*36+1)
		return append(make([]byte, contentHeaderOverhead), c.properties...)
	}
	for name, p := range map[string]*amqp.Publishing{
		"bare":  {},
		"full":  {ContentType: "a", ContentEncoding: "b", CorrelationId: "c", Priority: 1, AppId: "d"},
		"other": {ContentEncoding: "b", Timestamp: time.Now()},
	} {
		header := encoded(p, allTypes)
		if got := textHeader(header, "wanted"); got != "found" {
			t.Errorf("%s: got %q", name, got)
		}
		if got := textHeader(header, PublishHeader); got != "00000000000z1" {
			t.Errorf("%s: number %q", name, got)
		}
		if got := textHeader(header, "absent"); got != "" {
			t.Errorf("%s: absent is %q", name, got)
		}
		for cut := range header { // a truncated header must not make it read past the end
			textHeader(header[:cut], "absent")
		}
	}
}

func FuzzTextHeader(f *testing.F) {
	f.Add([]byte("............\x20\x00\x00\x00\x00\x10\x06wantedS\x00\x00\x00\x03abc"), "wanted")
	f.Fuzz(func(_ *testing.T, payload []byte, name string) { textHeader(payload, name) })
}

// foreignContent returns a message with headers of all types, including types that only
// other clients send.
func foreignContent(t *testing.T) *Content {
	t.Helper()
	c := new(Content)
	p := amqp.Publishing{ContentType: "a", ContentEncoding: "b", MessageId: "m"}
	if err := c.Encode(&p, func(b []byte) ([]byte, error) {
		b = append(appendShortString(b, "u"), 'u', 0xff, 0xfe)
		b = append(appendShortString(b, "nested"), 'F')
		at := len(b)
		b = append(appendShortString(append(b, 0, 0, 0, 0), "i"), 'i', 0xff, 0xff, 0xff, 0xfe)
		b = setSize(b, at)
		return AppendHeaders(b, allTypes)
	}); err != nil {
		t.Fatal(err)
	}
	return c
}

// Frames that amqp091 can read and malformed frames stay unchanged. A test in package
// rabbit checks the widened numbers with a broker.
func TestReadableFramesAreNotChanged(t *testing.T) {
	readable := new(Content)
	if err := readable.Encode(&amqp.Publishing{AppId: "a"}, func(b []byte) ([]byte, error) {
		return AppendHeaders(b, allTypes)
	}); err != nil {
		t.Fatal(err)
	}
	frames := [][]byte{heartbeat[:], []byte(protocolHeader)}
	for b := appendPublish(nil, 1, 1, "exchange", "key", readable, 4096); len(b) > 0; b = b[frameLength(b):] {
		frames = append(frames, b[:frameLength(b)])
	}
	whole := appendPublish(nil, 1, 1, "", "", foreignContent(t), 4096)
	properties := parseFrame(whole[frameLength(whole):]).payload
	const intact = contentHeaderOverhead + 2 + 2 + 2 // bytes before the headers
	for cut := range intact + 4 {
		frames = append(frames, endFrame(append(beginFrame(nil, frameHeader, 1), properties[:cut]...), 0))
	}
	for _, raw := range frames {
		if got := appendWidened([]byte("before"), raw); !bytes.Equal(got, append([]byte("before"), raw...)) {
			t.Errorf("% x\nbecame\n% x", raw, got[len("before"):])
		}
	}
}

// A number whose type amqp091 does not know gets a type that amqp091 knows, and keeps
// its value, at the top level and inside a table.
func TestUnknownNumbersAreWidened(t *testing.T) {
	b := appendPublish(nil, 1, 1, "", "", foreignContent(t), 4096)
	widened := appendWidened(nil, b[frameLength(b):])
	if frameLength(widened) != len(widened) {
		t.Fatalf("the frame has %d bytes, its size says %d", len(widened), frameLength(widened))
	}
	r := reader(parseFrame(widened).payload)
	if !r.skipToHeaders() {
		t.Fatal("no headers")
	}
	fields := reader(r.next(int(r.uint32())))
	if name := fields.shortString(); name != PublishHeader {
		t.Fatalf("the first header is %q", name)
	}
	fields.value()
	if name, kind, n := fields.shortString(), fields.uint8(), fields.uint32(); name != "u" || kind != 'I' || n != 0xfffe {
		t.Errorf("got %q %c %d, want u as a 32-bit number", name, kind, n)
	}
	if name, kind, size := fields.shortString(), fields.uint8(), fields.uint32(); name != "nested" || kind != 'F' || size != 2+1+8 {
		t.Errorf("got %q %c of %d bytes, want the nested table", name, kind, size)
	}
	if name, kind, n := fields.shortString(), fields.uint8(), fields.uint64(); name != "i" || kind != 'l' || n != 0xfffffffe {
		t.Errorf("got %q %c %d, want i as a 64-bit number", name, kind, n)
	}
}
