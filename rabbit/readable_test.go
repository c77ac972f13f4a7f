package rabbit

import (
	"bytes"
	"context"
	"testing"
	"time"

	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/watermill-once/once/internal/testkit"
)

// foreign are headers of all types, of which some only other clients can send.
func foreign(t *testing.T) *content {
	t.Helper()
	c := new(content)
	numbers := func(b []byte, name func(b []byte, name string) []byte) []byte {
		b = append(name(b, "u"), 'u', 0xff, 0xfe)
		b = append(name(b, "i"), 'i', 0xff, 0xff, 0xff, 0xfe)
		return append(name(b, "L"), 'L', 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xfe)
	}
	unnamed := func(b []byte, _ string) []byte { return b }
	p := amqp.Publishing{ContentType: "a", ContentEncoding: "b", MessageId: "m"}
	if err := c.encode(&p, func(b []byte) ([]byte, error) {
		b = numbers(b, appendShort)
		b = append(appendShort(b, "nested"), 'F')
		at := len(b)
		b = setSize(numbers(append(b, 0, 0, 0, 0), appendShort), at)
		b = append(appendShort(b, "items"), 'A')
		at = len(b)
		b = setSize(numbers(append(b, 0, 0, 0, 0), unnamed), at)
		return appendFields(b, allTypes, "")
	}); err != nil {
		t.Fatal(err)
	}
	return c
}

// They are read, and do not cost the connection of all subscriptions, again and
// again.
func TestTrap41_HeadersOfOtherClientsAreRead(t *testing.T) {
	config := wamqp.NewDurableQueueConfig(testkit.Rabbit(t).URL)
	config.Marshaler = Marshaler{}
	s, err := NewSubscriber(config, SubscriberConfig{ReadyTimeout: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	queue := testkit.Broker{}.Name("q")
	messages, err := s.Subscribe(context.WithoutCancel(t.Context()), queue)
	if err != nil {
		t.Fatal(err)
	}

	conn, shared, err := connect(t.Context(), config.Connection, true, time.Minute, time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	sender, err := shared.open(shared.most, func() {})
	if err != nil {
		t.Fatal(err)
	}
	if err := sender.await(); err != nil {
		t.Fatal(err)
	}
	if !sender.publish(1, &flight{key: queue}, foreign(t), 4096) {
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
		if len(msg.Metadata) != len(allTypes)+6 || msg.UUID != "m" {
			t.Errorf("got %+v", msg)
		}
		msg.Ack()
	case <-time.After(time.Minute):
		t.Fatal("no message within a minute")
	}
	channel, err := conn.Channel()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := channel.QueueDelete(queue, false, false, false); err != nil {
		t.Error(err)
	}
}

// What amqp091 can read stays what it is, and so does what nobody can.
func TestReadableFramesAreNotChanged(t *testing.T) {
	readable := new(content)
	if err := readable.encode(&amqp.Publishing{AppId: "a"}, func(b []byte) ([]byte, error) {
		return appendFields(b, allTypes, "")
	}); err != nil {
		t.Fatal(err)
	}
	frames := [][]byte{heartbeat[:], []byte(protocolHeader)}
	for b := appendPublish(nil, 1, 1, "exchange", "key", readable, 4096); len(b) > 0; b = b[frameLength(b):] {
		frames = append(frames, b[:frameLength(b)])
	}
	whole := appendPublish(nil, 1, 1, "", "", foreign(t), 4096)
	properties := frameOf(whole[frameLength(whole):]).payload
	const intact = contentHeaderOverhead + 2 + 2 + 2 // up to the headers
	for cut := range intact + 4 {
		frames = append(frames, endFrame(append(appendFrame(nil, frameHeader, 1), properties[:cut]...), 0))
	}
	for _, raw := range frames {
		if got := appendReadable([]byte("before"), raw); !bytes.Equal(got, append([]byte("before"), raw...)) {
			t.Errorf("% x\nbecame\n% x", raw, got[len("before"):])
		}
	}
}
