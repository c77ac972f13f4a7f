package amqpwire

import (
	"encoding/binary"

	amqp "github.com/rabbitmq/amqp091-go"
)

// PublishHeader is the name of a header that every published message has. Its value is
// the number of the publish on its channel. With it, a [Channel] recognizes a message
// that the broker returns. The value is a string, because watermill-amqp's own
// marshaler fails with any other type of header. The message id would not be enough: a
// service may publish one event to two topics, and the broker may return only one of
// the two messages.
const PublishHeader = "_once_publish"

// Content is an encoded message. Publish fills in the channel and the publish number.
// The zero value is ready for Encode.
type Content struct {
	// Body is the payload. It is sent unchanged.
	Body []byte

	properties []byte // property flags and property list of the content header
	numberAt   int    // index of the publish number in properties
}

// HeaderSize returns the size of the frame with the content header, in bytes.
func (c *Content) HeaderSize() int {
	return frameOverhead + contentHeaderOverhead + len(c.properties)
}

// numberSize is the number of digits of the publish number, in base 36. It is always
// the same, so that the number can be filled in after the other properties were
// encoded.
const numberSize = 13

const numberDigits = "0123456789abcdefghijklmnopqrstuvwxyz"

func putNumber(b []byte, number uint64) {
	for i := numberSize - 1; i >= 0; i-- {
		b[i] = numberDigits[number%36]
		number /= 36
	}
}

// The bits of the property flags, in the order of the property list.
const (
	flagContentType = 1 << (15 - iota)
	flagContentEncoding
	flagHeaders
	flagDeliveryMode
	flagPriority
	flagCorrelationID
	flagReplyTo
	flagExpiration
	flagMessageID
	flagTimestamp
	flagType
	flagUserID
	flagAppID
)

// Encode encodes the properties of p, [PublishHeader], and the headers that
// appendHeaders appends. It ignores p.Headers and p.DeliveryMode, because every message
// is persistent. It uses the memory of an earlier call again. If AMQP cannot carry the
// properties, it returns an [EncodeError].
func (c *Content) Encode(p *amqp.Publishing, appendHeaders func([]byte) ([]byte, error)) (err error) {
	l := propertyList{bytes: append(c.properties[:0], 0, 0), flags: flagHeaders | flagDeliveryMode}
	l.shortString(flagContentType, "content type", p.ContentType)
	l.shortString(flagContentEncoding, "content encoding", p.ContentEncoding)

	headers := len(l.bytes)
	l.bytes = appendShortString(append(l.bytes, 0, 0, 0, 0), PublishHeader)
	l.bytes = binary.BigEndian.AppendUint32(append(l.bytes, 'S'), numberSize)
	c.numberAt = len(l.bytes)
	l.bytes = append(l.bytes, make([]byte, numberSize)...)
	if l.bytes, err = appendHeaders(l.bytes); err != nil {
		return err
	}
	l.bytes = append(setSize(l.bytes, headers), amqp.Persistent)

	if p.Priority > 0 {
		l.flags |= flagPriority
		l.bytes = append(l.bytes, p.Priority)
	}
	l.shortString(flagCorrelationID, "correlation id", p.CorrelationId)
	l.shortString(flagReplyTo, "reply-to", p.ReplyTo)
	l.shortString(flagExpiration, "expiration", p.Expiration)
	l.shortString(flagMessageID, "message id", p.MessageId)
	if !p.Timestamp.IsZero() {
		l.flags |= flagTimestamp
		l.bytes = binary.BigEndian.AppendUint64(l.bytes, uint64(p.Timestamp.Unix()))
	}
	l.shortString(flagType, "type", p.Type)
	l.shortString(flagUserID, "user id", p.UserId)
	l.shortString(flagAppID, "app id", p.AppId)

	binary.BigEndian.PutUint16(l.bytes, l.flags)
	c.properties = l.bytes
	return l.err
}

// propertyList collects encoded properties. It keeps the first error.
type propertyList struct {
	bytes []byte
	flags uint16
	err   error
}

func (l *propertyList) shortString(flag uint16, name, value string) {
	switch {
	case value == "":
	case len(value) > MaxShortString:
		if l.err == nil {
			l.err = TooLarge(name, len(value), MaxShortString)
		}
	default:
		l.flags |= flag
		l.bytes = appendShortString(l.bytes, value)
	}
}
