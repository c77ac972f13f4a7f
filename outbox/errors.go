package outbox

import (
	"errors"
	"fmt"

	"github.com/watermill-once/once/internal/dialect"
)

var (
	// ErrInvalid means that the outbox refused messages of a call, and stored no message of
	// the call. The returned error wraps a [FieldError] for each reason.
	ErrInvalid = errors.New("outbox: invalid message")

	// ErrNoTransaction means that the transaction is nil. The publisher does not use
	// another connection instead, because the events would then be published even if the
	// service's transaction is rolled back.
	ErrNoTransaction = errors.New("outbox: no transaction: the *sql.Tx is nil")

	// ErrCommitUnknown means that the connection was lost during the commit. Either all
	// writes took effect, or none. Check whether your rows exist before you repeat the
	// work.
	ErrCommitUnknown = dialect.ErrCommitUnknown
)

// FieldError describes one invalid field of one message. It unwraps to [ErrInvalid] and,
// if [Config].Check refused the message, to the error of Check.
type FieldError struct {
	// Index is the index of the message in the call. The first message has index 0.
	Index int

	// MessageID is the id of the message. It may be the invalid field.
	MessageID string

	// Field is "message", "id", "topic", "payload" or "metadata". For a single metadata
	// key, it is "metadata" followed by the quoted key. If Config.Check refused the
	// message, it is "message".
	Field string

	// Reason describes the mistake. It contains no payload and no metadata value, unless
	// the error of Config.Check contains one.
	Reason string

	cause error // error of Config.Check, or nil
}

func (e *FieldError) Error() string {
	return fmt.Sprintf("outbox: message %d (id %s): %s %s", e.Index, quote(e.MessageID), e.Field, e.Reason)
}

// Unwrap returns [ErrInvalid] and, if [Config].Check refused the message, the error of
// Check.
func (e *FieldError) Unwrap() []error {
	if e.cause == nil {
		return []error{ErrInvalid}
	}
	return []error{ErrInvalid, e.cause}
}

// quote returns a name in quotes. It shortens long names, so that error texts stay
// readable.
func quote(s string) string {
	const limit = 64
	if len(s) > limit {
		return fmt.Sprintf("%q... of %d bytes", s[:limit], len(s))
	}
	return fmt.Sprintf("%q", s)
}
