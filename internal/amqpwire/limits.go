package amqpwire

import "fmt"

// MaxShortString is the limit in bytes for a name: of an exchange, a routing
// key, a header or a text property. The broker closes the whole connection over
// a violation of a protocol limit, so callers check limits before they send.
const MaxShortString = 255

const (
	// Bytes around the payload of every frame: type, channel, size, end octet.
	frameOverhead = 1 + 2 + 4 + 1

	// Bytes in front of the properties in a content header: class, weight, body
	// size.
	contentHeaderOverhead = 2 + 2 + 8
)

// EncodeError reports that AMQP cannot carry a message.
type EncodeError struct {
	// TooLarge reports that the message exceeds a limit. If it is false, a
	// header has a type that AMQP does not have.
	TooLarge bool

	reason string
}

func (e *EncodeError) Error() string { return e.reason }

// TooLarge returns the error that what, of size bytes, exceeds limit.
func TooLarge(what string, size, limit int) error {
	return &EncodeError{TooLarge: true, reason: fmt.Sprintf("%s of %d bytes; the limit is %d", what, size, limit)}
}
