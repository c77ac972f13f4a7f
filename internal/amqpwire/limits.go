package amqpwire

import "fmt"

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

// TooLarge returns the error for a part of a message that exceeds limit. The parameter
// part names this part, and size is its size in bytes.
func TooLarge(part string, size, limit int) error {
	return &EncodeError{TooLarge: true, reason: fmt.Sprintf("%s of %d bytes; the limit is %d", part, size, limit)}
}
