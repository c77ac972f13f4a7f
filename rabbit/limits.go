package rabbit

import (
	"fmt"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// What the protocol can carry. The broker answers what is over it by closing
// the whole connection, and amqp091 cuts long names silently, so it is checked
// before anything is sent.
const (
	maxShortString = 255

	// Around the payload of every frame: type, channel, size and end octet.
	frameOverhead = 1 + 2 + 4 + 1

	// In front of the properties in a content header: class, weight, body size
	// and flags.
	contentHeaderOverhead = 2 + 2 + 8 + 2

	// What the Publisher adds to every message: PublishHeader and a number.
	publishHeaderSize = 1 + len(PublishHeader) + 1 + 4 + maxTokenSize
)

// headerSize is the size of the publishing's content header on the wire, which
// has to fit into one frame, or what makes the message impossible to send.
func headerSize(exchange, key string, p *amqp.Publishing) (int, error) {
	size := frameOverhead + contentHeaderOverhead + publishHeaderSize
	for _, s := range [...]struct{ name, value string }{
		{"exchange", exchange},
		{"routing key", key},
		{"content type", p.ContentType},
		{"content encoding", p.ContentEncoding},
		{"correlation id", p.CorrelationId},
		{"reply-to", p.ReplyTo},
		{"expiration", p.Expiration},
		{"message id", p.MessageId},
		{"type", p.Type},
		{"user id", p.UserId},
		{"app id", p.AppId},
	} {
		if len(s.value) > maxShortString {
			return 0, tooLarge("%s of %d bytes; the limit is %d", s.name, len(s.value), maxShortString)
		}
		size += 1 + len(s.value)
	}
	size += 1 + 1 + 8 // delivery mode, priority, timestamp

	headers, err := tableSize(p.Headers)
	return size + headers, err
}

func tableSize(table amqp.Table) (int, error) {
	size := 4
	for name, value := range table {
		if len(name) > maxShortString {
			return 0, tooLarge("header name of %d bytes; the limit is %d", len(name), maxShortString)
		}
		field, err := fieldSize(value)
		if err != nil {
			return 0, fmt.Errorf("header %q: %w", name, err)
		}
		size += 1 + len(name) + field
	}
	return size, nil
}

func fieldSize(value any) (int, error) {
	switch v := value.(type) {
	case string:
		return 1 + 4 + len(v), nil
	case []byte:
		return 1 + 4 + len(v), nil
	case nil:
		return 1, nil
	case bool, byte, int8:
		return 1 + 1, nil
	case int16:
		return 1 + 2, nil
	case int, int32, float32:
		return 1 + 4, nil
	case amqp.Decimal:
		return 1 + 1 + 4, nil
	case int64, float64, time.Time:
		return 1 + 8, nil
	case amqp.Table:
		size, err := tableSize(v)
		return 1 + size, err
	case []any:
		size := 1 + 4
		for _, item := range v {
			field, err := fieldSize(item)
			if err != nil {
				return 0, err
			}
			size += field
		}
		return size, nil
	}
	return 0, &limitError{ErrInvalid, fmt.Sprintf("values of type %T cannot be sent", value)}
}

// limitError says which sentinel a message that cannot be sent falls under.
type limitError struct {
	kind   error
	reason string
}

func tooLarge(format string, args ...any) error {
	return &limitError{ErrTooLarge, fmt.Sprintf(format, args...)}
}

func (e *limitError) Error() string { return e.reason }

func (e *limitError) Unwrap() error { return e.kind }
