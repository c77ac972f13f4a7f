package outbox

import (
	"errors"
	"fmt"

	"github.com/watermill-once/once/internal/dialect"
)

var (
	// ErrInvalid says that messages were refused, and nothing was stored. Each
	// reason is a [FieldError] beneath it.
	ErrInvalid = errors.New("outbox: invalid message")

	// ErrNoTransaction says that there is no transaction to publish in. A
	// publisher that fell back to a connection of its own would publish what
	// the caller may yet roll back.
	ErrNoTransaction = errors.New("outbox: no transaction: the *sql.Tx is nil")

	// ErrCommitUnknown says that the connection was lost while the commit was
	// under way: everything took effect, or nothing did. Whoever sees it has to
	// look before doing the work again.
	ErrCommitUnknown = dialect.ErrCommitUnknown
)

// FieldError says what is wrong with one field of one message. It unwraps to
// [ErrInvalid].
type FieldError struct {
	// Index is the message's place among those of the call, from 0.
	Index int

	// MessageID is the message's id, which may be what is wrong.
	MessageID string

	// Field is "message", "id", "topic", "payload", "metadata" or, where one
	// entry is meant, "metadata" and the quoted key.
	Field string

	// Reason is what is wrong with it. It quotes no payload and no value.
	Reason string
}

func (e *FieldError) Error() string {
	return fmt.Sprintf("outbox: message %d (id %s): %s %s", e.Index, quote(e.MessageID), e.Field, e.Reason)
}

// Unwrap returns [ErrInvalid].
func (e *FieldError) Unwrap() error { return ErrInvalid }

// quote keeps what is over every limit out of error texts.
func quote(s string) string {
	const enough = 64
	if len(s) > enough {
		return fmt.Sprintf("%q... of %d bytes", s[:enough], len(s))
	}
	return fmt.Sprintf("%q", s)
}
