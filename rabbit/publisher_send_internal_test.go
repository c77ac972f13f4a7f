package rabbit

import (
	"errors"
	"testing"

	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/watermill-once/once/internal/amqpwire"
)

// The error of a message that cannot be sent contains the reason.
func TestReasonWhyNoMessageCanBeSent(t *testing.T) {
	t.Parallel()
	lost := errors.New("connection lost")
	for name, c := range map[string]struct {
		session *session
		channel *confirmChannel
		want    error
	}{
		"no connection":             {nil, nil, lost},
		"a blocked connection":      {&session{blocked: true}, &confirmChannel{}, errBlocked},
		"no channel":                {&session{}, nil, errReopening},
		"blocked without a channel": {&session{blocked: true}, nil, errBlocked},
		"ready":                     {&session{}, &confirmChannel{}, nil},
	} {
		p := &Publisher{session: c.session, channel: c.channel, down: lost}
		if got := p.unready(); !errors.Is(got, c.want) {
			t.Errorf("%s: got %v, want %v", name, got, c.want)
		}
	}
}

// header is a marshaler that sends one header.
type header struct {
	amqp.DefaultMarshaler

	value any
}

func (h header) Marshal(*message.Message) (amqp091.Publishing, error) {
	return amqp091.Publishing{Headers: amqp091.Table{"header": h.value}}, nil
}

// A message whose marshaler sets a header that AMQP cannot carry is unacceptable, and is
// not sent without this header.
func TestHeaderWithoutAnAMQPTypeIsUnacceptable(t *testing.T) {
	t.Parallel()
	for _, value := range []any{uint64(1), struct{}{}, []any{uint32(1)}, amqp091.Table{"nested": uint16(1)}} {
		config := amqp.NewDurableQueueConfig("amqp://unused")
		config.Marshaler = header{value: value}
		err := (&Publisher{config: config}).prepare(&publication{topic: "t"}, new(amqpwire.Content), message.NewMessage("m", nil))
		if refused, ok := errors.AsType[*PublishError](err); !ok || !refused.Unacceptable() || !errors.Is(err, ErrInvalid) {
			t.Errorf("%T: got %v, want an unacceptable message", value, err)
		}
	}
}
