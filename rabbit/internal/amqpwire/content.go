package amqpwire

import (
	"encoding/binary"
	"fmt"
	"math"
	"time"

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

// Header values are encoded as amqp091 encodes them. amqp091 follows RabbitMQ's
// interpretation of the protocol: https://www.rabbitmq.com/amqp-0-9-1-errata#section_3

// AppendTextHeader appends a header whose value is a string. It fails if the
// name is longer than [MaxShortString].
func AppendTextHeader(b []byte, name, value string) ([]byte, error) {
	b, err := appendName(b, name)
	if err != nil {
		return b, err
	}
	return appendText(b, value), nil
}

// AppendHeaders appends the headers of the table, except [PublishHeader], which Encode
// sets itself. If AMQP cannot carry a header, the error names the header and wraps an
// [EncodeError].
func AppendHeaders(b []byte, table amqp.Table) (_ []byte, err error) {
	for name, value := range table {
		if name == PublishHeader {
			continue
		}
		if b, err = appendField(b, name, value); err != nil {
			return b, err
		}
	}
	return b, nil
}

func appendTable(b []byte, table amqp.Table) (_ []byte, err error) {
	at := len(b)
	b = append(b, 0, 0, 0, 0)
	for name, value := range table {
		if b, err = appendField(b, name, value); err != nil {
			return b, err
		}
	}
	return setSize(b, at), nil
}

func appendField(b []byte, name string, value any) (_ []byte, err error) {
	if b, err = appendName(b, name); err != nil {
		return b, err
	}
	if b, err = appendValue(b, value); err != nil {
		return b, fmt.Errorf("header %q: %w", name, err)
	}
	return b, nil
}

func appendName(b []byte, name string) ([]byte, error) {
	if len(name) > MaxShortString {
		return b, TooLarge("header name", len(name), MaxShortString)
	}
	return appendShortString(b, name), nil
}

// appendShortString appends a string and its length. The string must have at most
// MaxShortString bytes.
func appendShortString(b []byte, s string) []byte {
	return append(append(b, byte(len(s))), s...)
}

func appendText(b []byte, s string) []byte {
	b = append(b, 'S')
	b = binary.BigEndian.AppendUint32(b, uint32(len(s)))
	return append(b, s...)
}

// setSize stores, in the four bytes at b[at:], the number of bytes that follow them.
func setSize(b []byte, at int) []byte {
	binary.BigEndian.PutUint32(b[at:], uint32(len(b)-at-4))
	return b
}

func appendValue(b []byte, value any) ([]byte, error) {
	switch v := value.(type) {
	case string:
		return appendText(b, v), nil
	case []byte:
		b = binary.BigEndian.AppendUint32(append(b, 'x'), uint32(len(v)))
		return append(b, v...), nil
	case nil:
		return append(b, 'V'), nil
	case bool:
		if v {
			return append(b, 't', 1), nil
		}
		return append(b, 't', 0), nil
	case amqp.Table:
		return appendTable(append(b, 'F'), v)
	case []any:
		return appendArray(append(b, 'A'), v)
	case amqp.Decimal:
		return binary.BigEndian.AppendUint32(append(b, 'D', v.Scale), uint32(v.Value)), nil
	case time.Time:
		return binary.BigEndian.AppendUint64(append(b, 'T'), uint64(v.Unix())), nil
	}
	return appendNumber(b, value)
}

func appendNumber(b []byte, value any) ([]byte, error) {
	switch v := value.(type) {
	case byte:
		return append(b, 'B', v), nil
	case int8:
		return append(b, 'b', byte(v)), nil
	case int16:
		return binary.BigEndian.AppendUint16(append(b, 's'), uint16(v)), nil
	case int:
		return binary.BigEndian.AppendUint32(append(b, 'I'), uint32(v)), nil
	case int32:
		return binary.BigEndian.AppendUint32(append(b, 'I'), uint32(v)), nil
	case int64:
		return binary.BigEndian.AppendUint64(append(b, 'l'), uint64(v)), nil
	case float32:
		return binary.BigEndian.AppendUint32(append(b, 'f'), math.Float32bits(v)), nil
	case float64:
		return binary.BigEndian.AppendUint64(append(b, 'd'), math.Float64bits(v)), nil
	}
	return b, &EncodeError{reason: fmt.Sprintf("AMQP has no type for a value of type %T; use a string", value)}
}

func appendArray(b []byte, items []any) (_ []byte, err error) {
	at := len(b)
	b = append(b, 0, 0, 0, 0)
	for _, item := range items {
		if b, err = appendValue(b, item); err != nil {
			return b, err
		}
	}
	return setSize(b, at), nil
}

// MaxShortString is the maximum length of the name of an exchange, a routing key, the
// name of a header, or a text property, in bytes. If a message violates a limit of the
// protocol, the broker closes the whole connection. Callers therefore check the limits
// before they send.
const MaxShortString = 255

const (
	// frameOverhead is the number of bytes around the payload of every frame: type,
	// channel, size, end octet.
	frameOverhead = 1 + 2 + 4 + 1

	// contentHeaderOverhead is the number of bytes before the properties in a content
	// header: class, weight, body size.
	contentHeaderOverhead = 2 + 2 + 8
)

// EncodeError means that AMQP cannot carry a message. The error string says why.
type EncodeError struct {
	// TooLarge means that the message exceeds a limit of AMQP. If TooLarge is false, AMQP
	// cannot carry the message because a header has a value of a type that AMQP does not
	// have.
	TooLarge bool

	reason string
}

func (e *EncodeError) Error() string { return e.reason }

// TooLarge returns the error for a part of a message that exceeds limit.
// part names this part, and size is its size in bytes.
func TooLarge(part string, size, limit int) error {
	return &EncodeError{TooLarge: true, reason: fmt.Sprintf("%s of %d bytes; the limit is %d", part, size, limit)}
}
