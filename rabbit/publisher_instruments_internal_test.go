package rabbit

import (
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/internal/amqpwire"
	"github.com/watermill-once/once/internal/testkit"
)

// Close unregisters the callbacks of the gauges. Otherwise the provider would keep the
// closed publisher in memory.
func TestCloseEndsTheObservation(t *testing.T) {
	t.Parallel()
	config := amqp.NewDurableQueueConfig("amqp://127.0.0.1:1")
	o := new(testkit.Observers)
	p, err := NewPublisher(config, PublisherConfig{MeterProvider: o, Logger: watermill.NopLogger{}})
	if err != nil {
		t.Fatal(err)
	}
	s, err := NewSubscriber(config, SubscriberConfig{MeterProvider: o, Logger: watermill.NopLogger{}})
	if err != nil {
		t.Fatal(err)
	}
	if n := o.Registered(); n != 2 {
		t.Errorf("%d are observed, want 2", n)
	}
	for _, end := range []func() error{p.Close, p.Close, s.Close, s.Close} {
		if err := end(); err != nil {
			t.Error(err)
		}
	}
	if n := o.Registered(); n != 0 {
		t.Errorf("%d are observed after Close, want none", n)
	}
}

// The size of a message in the window is the size of its headers plus the size of its
// body.
func TestSizeOfAPublicationHasHeadersAndBody(t *testing.T) {
	t.Parallel()
	for _, marshaler := range []amqp.Marshaler{Marshaler{}, amqp.DefaultMarshaler{}} {
		config := amqp.NewDurableQueueConfig("amqp://unused")
		config.Marshaler = marshaler
		p := &Publisher{config: config}
		sizes := map[string]int{}
		for name, msg := range map[string]*message.Message{
			"empty": message.NewMessage("id", nil), "body": message.NewMessage("id", make([]byte, 1000)), "header": message.NewMessage("id", nil),
		} {
			if name == "header" {
				msg.Metadata.Set("k", strings.Repeat("v", 500))
			}
			pub := &publication{topic: "t"}
			if err := p.prepare(pub, new(amqpwire.Content), msg); err != nil {
				t.Fatal(err)
			}
			sizes[name] = pub.size
		}
		if sizes["body"] != sizes["empty"]+1000 || sizes["header"] != sizes["empty"]+500+1+1+1+4 || sizes["empty"] < 20 {
			t.Errorf("the sizes are %v", sizes)
		}
	}
}
