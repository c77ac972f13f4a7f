package retry

import (
	"errors"
	"fmt"
	"time"

	"github.com/watermill-once/once/internal/disposition"
)

var errClosed = errors.New("retry: the subscriber is closed")

// ErrConsumerInUse means that Subscribe failed, because another handler of this process
// uses the same consumer name and topic. Each of the two handlers would skip messages
// that the other has handled.
var ErrConsumerInUse = errors.New("the consumer's name is in use")

// inUseError is an error that wraps [ErrConsumerInUse]. Its text contains the name of the
// other handler.
type inUseError struct{ error }

func (inUseError) Is(target error) bool { return target == ErrConsumerInUse }

// ErrGivenBack means that some messages were neither acked nor nacked when Close had
// waited for Config.CloseTimeout. These messages are delivered again.
var ErrGivenBack = errors.New("retry: messages given back without an ack")

// Permanent marks err as permanent. The message is then given up on immediately,
// without further attempts. Permanent(nil) returns nil.
func Permanent(err error) error {
	if err == nil {
		return nil
	}
	return disposition.Forever(disposition.ReasonPermanent, err)
}

// After sets the delay before the next attempt. The message is parked for d instead of
// the policy's delay, and is not tried again before that. The failure counts as an
// attempt like any other failure. After(nil, d) returns nil.
func After(err error, d time.Duration) error {
	if err == nil {
		return nil
	}
	return &disposition.Error{Kind: disposition.Failed, Reason: disposition.ReasonFailed, After: max(d, time.Millisecond), Err: err}
}

// Error is the error that the middleware returns for a message that it has given up on.
// It wraps the last error of the handler.
type Error struct {
	// Attempts is the number of calls of the handler, over all deliveries.
	Attempts int

	// Reason is one of poison's Reason constants.
	Reason string

	err error
}

func (e *Error) Error() string {
	return fmt.Sprintf("retry: given up after attempt %d: %v", e.Attempts, e.err)
}

// Unwrap returns the last error of the handler.
func (e *Error) Unwrap() error { return e.err }
