package outbox

import (
	"errors"
	"fmt"

	"github.com/watermill-once/once/internal/dialect"
)

var (
	// ErrInvalid reports that the outbox refused messages of a call, and stored none of
	// them. It wraps a [FieldError] for each reason.
	ErrInvalid = errors.New("outbox: invalid message")

	// ErrNoTransaction reports that the transaction is nil. The publisher does not use
	// another connection instead, because the transaction of the service may roll back,
	// and its events would be published anyway.
	ErrNoTransaction = errors.New("outbox: no transaction: the *sql.Tx is nil")

	// ErrCommitUnknown reports that the connection was lost during the commit. Either
	// all writes took effect, or none. Check whether your rows exist before you repeat
	// the work.
	ErrCommitUnknown = dialect.ErrCommitUnknown
)

// FieldError describes one invalid field of one message. It unwraps to
// [ErrInvalid], and to the error of [Config].Check if there is one.
type FieldError struct {
	// Index is the index of the message in the call, from 0.
	Index int

	// MessageID is the id of the message. It may be the invalid field.
	MessageID string

	// Field is "message", "id", "topic", "payload" or "metadata". For a single metadata
	// key, it is "metadata" followed by the quoted key. If Config.Check refused the
	// message, it is "message".
	Field string

	// Reason describes the mistake. It contains no payload and no metadata value, unless
	// Config.Check returned one.
	Reason string

	cause error // of Config.Check, or nil
}

func (e *FieldError) Error() string {
	return fmt.Sprintf("outbox: message %d (id %s): %s %s", e.Index, quote(e.MessageID), e.Field, e.Reason)
}

// Unwrap returns [ErrInvalid], and the error of [Config].Check if there is one.
func (e *FieldError) Unwrap() []error {
	if e.cause == nil {
		return []error{ErrInvalid}
	}
	return []error{ErrInvalid, e.cause}
}

// quote quotes a name, and shortens a long one so that error texts stay readable.
func quote(s string) string {
	const limit = 64
	if len(s) > limit {
		return fmt.Sprintf("%q... of %d bytes", s[:limit], len(s))
	}
	return fmt.Sprintf("%q", s)
}
