package rabbit

import (
	"bytes"
	"encoding/json"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/rabbitmq/amqp091-go"

	"github.com/watermill-once/once/internal/meta"
	"github.com/watermill-once/once/rabbit/internal/amqpwire"
)

var _ amqp.Marshaler = Marshaler{}

// Marshaler converts between Watermill's messages and AMQP's. It can replace watermill-amqp's
// DefaultMarshaler everywhere: both write the message id to the header _watermill_message_uuid, and
// read each other's messages. The zero value is ready to use.
//
// Marshal turns every metadata entry into a header of type string, byte for byte, except two groups
// of keys. First, keys that control the broker: metadata often comes from outside the service, and
// a BCC header alone sends a copy to any queue. They are CC, BCC, every key that starts with "x-"
// (also x-request-id, which needs another name), expiration, user-id and user_id, in any case.
// Second, keys that Unmarshal sets. The message id is also the native message id if it has at most
// 255 bytes. Of a forwarder's message, the native timestamp is the time at which it was stored in
// the outbox, and the header once_times contains "once_created_at/once_published_at", which become
// two metadata entries. Messages are persistent.
//
// Unmarshal accepts every header. It converts a header that is not a string:
//
//	string, byte array    its bytes unchanged, including NUL and invalid UTF-8
//	boolean               true, false
//	integers              decimal
//	float, double         shortest form that reads back the same; NaN, +Inf, -Inf
//	decimal               all its digits, with a point: 12.50
//	timestamp             RFC 3339 in UTC, in seconds
//	void                  empty
//	table, array          JSON with sorted keys; the values have the same forms,
//	                      void is null, and bytes that are not UTF-8 become U+FFFD
//
// Two metadata entries come from the broker, and headers with their names are ignored.
// "once_redelivered" is "true" if the broker has delivered the message before, or "false".
// "once_delivery_count" is the number of earlier deliveries, only for a redelivery from a queue
// that counts them, such as a quorum queue.
//
// Of a CloudEvent (see package eventbus/cloudevents), the metadata entry "content-type" is the native content
// type. If it has no header _watermill_message_uuid, because another system has sent it, its id is
// the id of the message.
//
// Names that begin with "once_" belong to this module. Unmarshal drops such headers if they control
// an outbox, such as "once_topic" and "once_due_at", or are unknown. Otherwise the sender of a
// message could control the outbox of any handler that copies metadata. Marshal also drops those
// that control an outbox.
type Marshaler struct {
	// ContentType is the native content type of all sent messages, for tools that show them. At
	// most 255 bytes. Defaults to none.
	ContentType string
}

// Marshal returns the AMQP message for msg, with the same payload, and never an error.
func (m Marshaler) Marshal(msg *message.Message) (amqp091.Publishing, error) {
	publishing := m.properties(msg)
	publishing.Headers = make(amqp091.Table, len(msg.Metadata)+1)
	times, joined := meta.JoinTimes(msg.Metadata)
	if joined {
		publishing.Headers[meta.Times] = times
	}
	for key, value := range msg.Metadata {
		if passes(key, joined) {
			publishing.Headers[key] = ownID(msg, key, value)
		}
	}
	publishing.Headers[amqp.DefaultMessageUUIDHeaderKey] = msg.UUID
	return publishing, nil
}

func (m Marshaler) properties(msg *message.Message) amqp091.Publishing {
	publishing := amqp091.Publishing{
		ContentType:  m.ContentType,
		DeliveryMode: amqp091.Persistent,
		Body:         msg.Payload,
	}
	if len(msg.UUID) <= amqpwire.MaxShortString {
		publishing.MessageId = msg.UUID
	}
	if created, ok := meta.Stamped(msg.Metadata[meta.CreatedAt]); ok {
		publishing.Timestamp = created
	}
	if mediaType := meta.EventContentType(msg.Metadata); mediaType != "" && len(mediaType) <= amqpwire.MaxShortString {
		publishing.ContentType = mediaType
	}
	return publishing
}

const eventID = meta.EventPrefix + "id"

// ownID returns the value of a header. The id of a CloudEvent is that of its message, also if a
// handler has copied the metadata of another event.
func ownID(msg *message.Message, key, value string) string {
	if key == eventID {
		return msg.UUID
	}
	return value
}

func appendMetadata(b []byte, msg *message.Message) (_ []byte, err error) {
	times, joined := meta.JoinTimes(msg.Metadata)
	if joined {
		if b, err = amqpwire.AppendTextHeader(b, meta.Times, times); err != nil {
			return b, err
		}
	}
	for key, value := range msg.Metadata {
		if !passes(key, joined) {
			continue
		}
		if b, err = amqpwire.AppendTextHeader(b, key, ownID(msg, key, value)); err != nil {
			return b, err
		}
	}
	return amqpwire.AppendTextHeader(b, amqp.DefaultMessageUUIDHeaderKey, msg.UUID)
}

// passes reports whether a metadata key becomes a header. An unknown "once_" key comes from a newer
// version of this module, because each outbox refuses those that it does not know. joined says
// whether another header has the times of the forwarder.
func passes(key string, joined bool) bool {
	if joined && (key == meta.CreatedAt || key == meta.PublishedAt) {
		return false
	}
	return (!isReserved(key) || !meta.Known(key)) && !meta.Steering(key)
}

// Unmarshal returns the message of a delivery. Its id is the header _watermill_message_uuid, or the
// id of a CloudEvent, or the native message id, or "". Unmarshal does not copy the body, and never returns an error.
func (m Marshaler) Unmarshal(delivery amqp091.Delivery) (*message.Message, error) {
	msg := message.NewMessage(deliveryID(delivery), delivery.Body)
	msg.Metadata = make(message.Metadata, len(delivery.Headers)+4)
	for key, value := range delivery.Headers {
		if !isReserved(key) {
			msg.Metadata[key] = headerText(value)
		}
	}
	if created, published, ok := meta.SplitTimes(headerText(delivery.Headers[meta.Times])); ok {
		msg.Metadata[meta.CreatedAt], msg.Metadata[meta.PublishedAt] = created, published
	}
	if delivery.ContentType != "" && isEvent(delivery) {
		msg.Metadata[meta.ContentType] = delivery.ContentType
	}
	msg.Metadata[meta.Redelivered] = strconv.FormatBool(delivery.Redelivered)
	if count, ok := deliveryCount(delivery); ok {
		msg.Metadata[meta.DeliveryCount] = strconv.FormatInt(count, 10)
	}
	return msg, nil
}

func isReserved(key string) bool {
	return key == amqp.DefaultMessageUUIDHeaderKey || key == amqpwire.PublishHeader || !meta.Travels(key)
}

func deliveryID(delivery amqp091.Delivery) string {
	if id := headerText(delivery.Headers[amqp.DefaultMessageUUIDHeaderKey]); id != "" {
		return id
	}
	if meta.Structured(delivery.ContentType) {
		if id := meta.StructuredID(delivery.Body); id != "" {
			return id
		}
	}
	for _, key := range [...]string{eventID, "cloudEvents_id"} {
		if id := headerText(delivery.Headers[key]); id != "" {
			return id
		}
	}
	return delivery.MessageId
}

// isEvent reports whether a delivery with a content type is a CloudEvent.
func isEvent(delivery amqp091.Delivery) bool {
	_, colon := delivery.Headers[meta.EventPrefix+"specversion"]
	_, underscore := delivery.Headers["cloudEvents_specversion"]
	return colon || underscore || strings.HasPrefix(delivery.ContentType, "application/cloudevents")
}

// deliveryCount returns the number of earlier deliveries, and whether it is known. Since RabbitMQ
// 4.3 it is in x-acquired-count, and x-delivery-count counts only failures; older brokers write
// only the latter. On a first delivery, the sender may have written them.
func deliveryCount(delivery amqp091.Delivery) (int64, bool) {
	if !delivery.Redelivered {
		return 0, false
	}
	for _, header := range []string{"x-acquired-count", "x-delivery-count"} {
		if count, ok := integer(delivery.Headers[header]); ok && count >= 0 {
			return count, true
		}
	}
	return 0, false
}

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

func headerText(value any) string {
	switch v := value.(type) {
	case string:
		return v
	case []byte:
		return string(v)
	case nil:
		return ""
	}
	switch v := plain(value).(type) {
	case string:
		return v
	case json.Number:
		return v.String()
	default:
		return jsonText(v)
	}
}

func plain(value any) any {
	switch v := value.(type) {
	case []byte:
		return string(v)
	case time.Time:
		return v.UTC().Format(time.RFC3339)
	case float32:
		return number(float64(v), 32)
	case float64:
		return number(v, 64)
	case amqp091.Decimal:
		return json.Number(decimal(v))
	case amqp091.Table:
		fields := make(map[string]any, len(v))
		for name, field := range v {
			fields[name] = plain(field)
		}
		return fields
	case []any:
		items := make([]any, len(v))
		for i, item := range v {
			items[i] = plain(item)
		}
		return items
	default:
		return v // bool, integers, string and nil are the remaining types of AMQP
	}
}

func number(f float64, bits int) any {
	if math.IsNaN(f) || math.IsInf(f, 0) {
		return strconv.FormatFloat(f, 'g', -1, bits) // JSON has no NaN and no infinite numbers
	}
	return json.Number(strconv.FormatFloat(f, 'g', -1, bits))
}

// decimal returns value * 10^-scale without rounding.
func decimal(d amqp091.Decimal) string {
	digits := strconv.FormatInt(int64(d.Value), 10)
	if d.Scale == 0 {
		return digits
	}
	sign := ""
	if d.Value < 0 {
		sign, digits = "-", digits[1:]
	}
	scale := int(d.Scale)
	if missing := scale + 1 - len(digits); missing > 0 {
		digits = strings.Repeat("0", missing) + digits
	}
	point := len(digits) - scale
	return sign + digits[:point] + "." + digits[point:]
}

func jsonText(value any) string {
	var text bytes.Buffer
	encoder := json.NewEncoder(&text)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(value); err != nil {
		return "" // AMQP has no other types
	}
	return strings.TrimSuffix(text.String(), "\n")
}
