package rabbit

import (
	"encoding/binary"

	amqp "github.com/rabbitmq/amqp091-go"
)

// content is a message as it goes over the wire, but for the numbers of its
// channel and its publish, which are known only when it goes.
type content struct {
	properties []byte // flags and list of the content header
	token      int    // where in these the number of the publish goes
	body       []byte
}

// headerSize is the size of the frame of the content header.
func (c *content) headerSize() int {
	return frameOverhead + contentHeaderOverhead + len(c.properties)
}

// Every publish carries its number, in base 36 and always as long: it is filled in
// when the rest is encoded.
const tokenSize = 13

const tokenDigits = "0123456789abcdefghijklmnopqrstuvwxyz"

func putToken(b []byte, number uint64) {
	for i := tokenSize - 1; i >= 0; i-- {
		b[i] = tokenDigits[number%36]
		number /= 36
	}
}

// The bits of the property flags, in the order of the list.
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

// encode sets the properties to those of p, with the headers that fields
// appends instead of its own, and persistent whatever it says. It writes over
// the properties that were there.
func (c *content) encode(p *amqp.Publishing, fields func([]byte) ([]byte, error)) (err error) {
	l := propertyList{bytes: append(c.properties[:0], 0, 0), flags: flagHeaders | flagDeliveryMode}
	l.short(flagContentType, "content type", p.ContentType)
	l.short(flagContentEncoding, "content encoding", p.ContentEncoding)

	headers := len(l.bytes)
	l.bytes = appendShort(append(l.bytes, 0, 0, 0, 0), PublishHeader)
	l.bytes = binary.BigEndian.AppendUint32(append(l.bytes, 'S'), tokenSize)
	c.token = len(l.bytes)
	l.bytes = append(l.bytes, make([]byte, tokenSize)...)
	if l.bytes, err = fields(l.bytes); err != nil {
		return err
	}
	l.bytes = append(setSize(l.bytes, headers), amqp.Persistent)

	if p.Priority > 0 {
		l.flags |= flagPriority
		l.bytes = append(l.bytes, p.Priority)
	}
	l.short(flagCorrelationID, "correlation id", p.CorrelationId)
	l.short(flagReplyTo, "reply-to", p.ReplyTo)
	l.short(flagExpiration, "expiration", p.Expiration)
	l.short(flagMessageID, "message id", p.MessageId)
	if !p.Timestamp.IsZero() {
		l.flags |= flagTimestamp
		l.bytes = binary.BigEndian.AppendUint64(l.bytes, uint64(p.Timestamp.Unix()))
	}
	l.short(flagType, "type", p.Type)
	l.short(flagUserID, "user id", p.UserId)
	l.short(flagAppID, "app id", p.AppId)

	binary.BigEndian.PutUint16(l.bytes, l.flags)
	c.properties = l.bytes
	return l.err
}

// propertyList is one in the making.
type propertyList struct {
	bytes []byte
	flags uint16
	err   error
}

func (l *propertyList) short(flag uint16, name, value string) {
	switch {
	case value == "":
	case len(value) > maxShortString:
		if l.err == nil {
			l.err = tooLarge("%s of %d bytes; the limit is %d", name, len(value), maxShortString)
		}
	default:
		l.flags |= flag
		l.bytes = appendShort(l.bytes, value)
	}
}
