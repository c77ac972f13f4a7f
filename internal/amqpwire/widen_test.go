package amqpwire

import (
	"bytes"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"
)

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
