package retry

import (
	"errors"
	"fmt"
	"time"

	"github.com/watermill-once/once/internal/disposition"
	"github.com/watermill-once/once/internal/parked"
)

// ErrClosed says that the subscriber was closed.
var ErrClosed = errors.New("retry: closed")

// ErrConsumerInUse says that another handler of this process has the name of a
// consumer: each would skip what the other has done.
var ErrConsumerInUse = errors.New("the consumer's name is in use")

// inUseError is [ErrConsumerInUse] with a text that says by whom.
type inUseError struct{ error }

func (inUseError) Is(target error) bool { return target == ErrConsumerInUse }

// ErrGivenBack is the error of Close that messages were handed out and not
// answered within Config.CloseTimeout.
var ErrGivenBack = errors.New("retry: given back without an ack")

// ErrInsideDedup says that the middleware is inside of dedup's, where it would
// have what a failed handler wrote committed. The handler is not called, and the
// message is handed back.
var ErrInsideDedup = parked.ErrInsideDedup

// Permanent marks an error that no further attempt can mend: the message is
// given up at once. Permanent(nil) is nil.
func Permanent(err error) error {
	if err == nil {
		return nil
	}
	return disposition.Forever(disposition.ReasonPermanent, err)
}

// After marks an error that tells when to try again: the message is parked for
// d, without immediate tries, whatever the policy's delay. It counts as an
// attempt like any other. After(nil, d) is nil.
func After(err error, d time.Duration) error {
	if err == nil {
		return nil
	}
	return &disposition.Error{Kind: disposition.Failed, Reason: disposition.ReasonFailed, After: max(d, time.Millisecond), Err: err}
}

// Error is what the middleware returns for a message that it has given up. It
// unwraps to the last error of the handler.
type Error struct {
	// Attempts is how often the handler was tried in all.
	Attempts int

	// Reason is one of poison's Reason constants.
	Reason string

	err error
}

func (e *Error) Error() string {
	return fmt.Sprintf("retry: given up at attempt %d: %v", e.Attempts, e.err)
}

// Unwrap returns the last error.
func (e *Error) Unwrap() error { return e.err }
