package outbox

import (
	"errors"
	"fmt"

	"github.com/watermill-once/once/internal/dialect"
)

var (
	// ErrInvalid reports that messages were refused and nothing was stored. It
	// wraps a [FieldError] for each reason.
	ErrInvalid = errors.New("outbox: invalid message")

	// ErrNoTransaction reports that the transaction is nil. A publisher does not
	// use a connection of its own instead, because it would publish events of a
	// transaction that may roll back.
	ErrNoTransaction = errors.New("outbox: no transaction: the *sql.Tx is nil")

	// ErrCommitUnknown reports that the connection was lost during the commit:
	// either everything took effect or nothing did. Find out which before you repeat
	// the work.
	ErrCommitUnknown = dialect.ErrCommitUnknown
)

// FieldError describes one invalid field of one message. It unwraps to
// [ErrInvalid].
type FieldError struct {
	// Index is the index of the message in the call, from 0.
	Index int

	// MessageID is the id of the message. It may be the invalid field.
	MessageID string

	// Field is "message", "id", "topic", "payload", "metadata" or, for a single
	// metadata key, "metadata" and the quoted key.
	Field string

	// Reason describes the mistake. It quotes no payload and no metadata value.
	Reason string
}

func (e *FieldError) Error() string {
	return fmt.Sprintf("outbox: message %d (id %s): %s %s", e.Index, quote(e.MessageID), e.Field, e.Reason)
}

// Unwrap returns [ErrInvalid].
func (e *FieldError) Unwrap() error { return ErrInvalid }

// quote shortens long names, so that error texts stay readable.
func quote(s string) string {
	const limit = 64
	if len(s) > limit {
		return fmt.Sprintf("%q... of %d bytes", s[:limit], len(s))
	}
	return fmt.Sprintf("%q", s)
}
