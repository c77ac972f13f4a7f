package rabbit

import "fmt"

// What the protocol can carry. The broker answers what is over it by closing
// the whole connection, so it is checked before anything is sent.
const (
	maxShortString = 255

	// Around the payload of every frame: type, channel, size and end octet.
	frameOverhead = 1 + 2 + 4 + 1

	// In front of the properties in a content header: class, weight and body
	// size.
	contentHeaderOverhead = 2 + 2 + 8
)

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
