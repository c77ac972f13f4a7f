package rabbit

import (
	"strconv"

	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/watermill-once/once/internal/meta"
)

var _ amqp.Marshaler = Marshaler{}

// Marshaler translates between Watermill's messages and AMQP's. It may stand
// in for watermill-amqp's DefaultMarshaler everywhere, and the two understand
// each other: the id is in the header _watermill_message_uuid. The zero value
// is ready to use.
//
// To the broker, every metadata entry becomes a header of type string, byte
// for byte. Entries that would steer the broker (see SteeringHeader) are left
// out, and so are those that Unmarshal itself sets. The id is also the native
// message id, where it fits in (255 bytes), and messages are persistent.
//
// From the broker, no header fails: one that is not a string becomes one.
//
//	string, byte array    its bytes, as they came: also NUL and invalid UTF-8
//	boolean               true, false
//	integers              decimal
//	float, double         shortest form that reads back the same; NaN, +Inf, -Inf
//	decimal               all its digits, with a point: 12.50
//	timestamp             RFC 3339 in UTC, in seconds
//	void                  empty
//	table, array          JSON, keys sorted; what is inside takes the same forms,
//	                      void is null, and bytes that are not UTF-8 become U+FFFD
//
// MetadataRedelivered and MetadataDeliveryCount are set from what the broker
// says, whatever headers of these names the message carries. Names that begin
// with "once_" belong to this module. Unmarshal drops those of them that steer
// an outbox, such as "once_topic" and "once_due_at", and those that it does not
// know: a handler that passes metadata on would obey whoever has published the
// message. Marshal drops them too.
type Marshaler struct {
	// ContentType is the native content type of every message that is sent, for
	// tools that show messages. It may be up to 255 bytes long. Defaults to
	// none.
	ContentType string
}

// Marshal returns msg as it goes to the broker. It does not copy the payload
// and does not fail.
func (m Marshaler) Marshal(msg *message.Message) (amqp091.Publishing, error) {
	publishing := m.properties(msg)
	publishing.Headers = make(amqp091.Table, len(msg.Metadata)+1)
	for key, value := range msg.Metadata {
		if passes(key) {
			publishing.Headers[key] = value
		}
	}
	publishing.Headers[amqp.DefaultMessageUUIDHeaderKey] = msg.UUID
	return publishing, nil
}

// properties is all but the headers.
func (m Marshaler) properties(msg *message.Message) amqp091.Publishing {
	publishing := amqp091.Publishing{
		ContentType:  m.ContentType,
		DeliveryMode: amqp091.Persistent,
		Body:         msg.Payload,
	}
	if len(msg.UUID) <= maxShortString {
		publishing.MessageId = msg.UUID
	}
	return publishing
}

// appendMetadata encodes the headers that Marshal makes.
func appendMetadata(b []byte, msg *message.Message) (_ []byte, err error) {
	for key, value := range msg.Metadata {
		if !passes(key) {
			continue
		}
		if b, err = appendName(b, key); err != nil {
			return b, err
		}
		b = appendText(b, value)
	}
	return appendText(appendShort(b, amqp.DefaultMessageUUIDHeaderKey), msg.UUID), nil
}

// passes says which metadata becomes a header. A key of this module that this
// version does not know is one of a newer producer's, for newer consumers: the
// outbox refuses those that nobody knows.
func passes(key string) bool {
	return (!ours(key) || !meta.Known(key)) && !SteeringHeader(key)
}

// Unmarshal returns the delivery as a message. Its id is that of the header,
// else the native message id, else empty; what to do with a message without an
// id is not decided here. Unmarshal does not copy the body and does not fail.
func (m Marshaler) Unmarshal(delivery amqp091.Delivery) (*message.Message, error) {
	msg := message.NewMessage(deliveryID(delivery), delivery.Body)
	msg.Metadata = make(message.Metadata, len(delivery.Headers)+2)
	for key, value := range delivery.Headers {
		if !ours(key) {
			msg.Metadata[key] = headerText(value)
		}
	}
	msg.Metadata[MetadataRedelivered] = strconv.FormatBool(delivery.Redelivered)
	if count, ok := deliveryCount(delivery); ok {
		msg.Metadata[MetadataDeliveryCount] = strconv.FormatInt(count, 10)
	}
	return msg, nil
}

// ours are the keys that exist as header or as metadata only, never as both.
func ours(key string) bool {
	return key == amqp.DefaultMessageUUIDHeaderKey || key == PublishHeader || !meta.Travels(key)
}

func deliveryID(delivery amqp091.Delivery) string {
	if id := headerText(delivery.Headers[amqp.DefaultMessageUUIDHeaderKey]); id != "" {
		return id
	}
	return delivery.MessageId
}

// deliveryCount trusts the broker's header only on a redelivery: on a first
// delivery the broker does not write it, so it can only be the sender's.
func deliveryCount(delivery amqp091.Delivery) (int64, bool) {
	if !delivery.Redelivered {
		return 0, false
	}
	count, ok := integer(delivery.Headers["x-delivery-count"])
	return count, ok && count >= 0
}

// integer reads a number of any of AMQP's types.
func integer(value any) (n int64, ok bool) {
	switch n := value.(type) {
	case int:
		return int64(n), true
	case int64:
		return n, true
	case int32:
		return int64(n), true
	case int16:
		return int64(n), true
	case int8:
		return int64(n), true
	case uint8:
		return int64(n), true
	}
	return 0, false
}
