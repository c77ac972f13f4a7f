package amqpwire

import (
	"encoding/binary"
	"fmt"
	"math"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// PublishHeader is a header with the number of the publish on its channel, by which a [Channel]
// recognizes a returned message. It is a string, because watermill-amqp's own marshaler fails with
// any other type. The message id is not enough: the broker may return only one of two messages of
// an event to two topics.
const PublishHeader = "_once_publish"

// Content is an encoded message. Publish fills in the channel and the publish number. The zero
// value is ready for Encode.
type Content struct {
	// Body is sent unchanged.
	Body []byte

	properties []byte // property flags and property list of the content header
	numberAt   int    // index of the publish number in properties
}

// HeaderSize returns the size of the content header's frame, in bytes.
func (c *Content) HeaderSize() int {
	return frameOverhead + contentHeaderOverhead + len(c.properties)
}

// numberSize is the fixed number of digits of the publish number in base 36, which is filled in
// after the other properties were encoded.
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

// Encode encodes the properties of p, [PublishHeader], and what appendHeaders appends, but neither
// p.Headers nor p.DeliveryMode, because every message is persistent. It uses the memory of an
// earlier call again. If AMQP cannot carry the properties, it returns an [EncodeError].
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

// Header values are encoded like amqp091's, which follow RabbitMQ:
// https://www.rabbitmq.com/amqp-0-9-1-errata#section_3

// AppendTextHeader appends a string header. It fails if the name is longer than [MaxShortString].
func AppendTextHeader(b []byte, name, value string) ([]byte, error) {
	b, err := appendName(b, name)
	if err != nil {
		return b, err
	}
	return appendText(b, value), nil
}

// AppendHeaders appends the headers of the table, except [PublishHeader]. If AMQP cannot carry one,
// the error names it and wraps an [EncodeError].
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

// MaxShortString is the maximum length of the name of an exchange or a header, a routing key, or a
// text property, in bytes. Callers check the limits of the protocol before they send, because the
// broker closes the whole connection.
const MaxShortString = 255

const (
	// frameOverhead is type, channel, size and end octet.
	frameOverhead = 1 + 2 + 4 + 1

	// contentHeaderOverhead is class, weight and body size.
	contentHeaderOverhead = 2 + 2 + 8
)

// EncodeError says why AMQP cannot carry a message.
type EncodeError struct {
	// TooLarge means that the message exceeds a limit of AMQP. Otherwise a header has a type that
	// AMQP does not have.
	TooLarge bool

	reason string
}

func (e *EncodeError) Error() string { return e.reason }

// TooLarge returns the error for a part of a message of size bytes that exceeds limit.
func TooLarge(part string, size, limit int) error {
	return &EncodeError{TooLarge: true, reason: fmt.Sprintf("%s of %d bytes; the limit is %d", part, size, limit)}
}
