package retry

import (
	"errors"
	"fmt"
	"time"

	"github.com/watermill-once/once/internal/disposition"
	"github.com/watermill-once/once/internal/parked"
)

var errClosed = errors.New("retry: the subscriber is closed")

// ErrConsumerInUse is the error of Subscribe if another handler of this process
// uses the same consumer name: each would skip messages that the other has
// handled.
var ErrConsumerInUse = errors.New("the consumer's name is in use")

// inUseError is [ErrConsumerInUse] with a text that names the other handler.
type inUseError struct{ error }

func (inUseError) Is(target error) bool { return target == ErrConsumerInUse }

// ErrGivenBack is the error of Close if messages had neither ack nor nack within
// Config.CloseTimeout. They are delivered again.
var ErrGivenBack = errors.New("retry: messages given back without an ack")

// ErrInsideDedup is the error of the middleware if it runs inside of dedup's
// middleware. There dedup would commit the writes of a failed handler. The
// handler is not called, and the message returns to the transport.
var ErrInsideDedup = parked.ErrInsideDedup

// Permanent marks err as permanent: the message is given up at once, without
// further attempts. Permanent(nil) returns nil.
func Permanent(err error) error {
	if err == nil {
		return nil
	}
	return disposition.Forever(disposition.ReasonPermanent, err)
}

// After marks err with the delay before the next attempt: the message is parked
// for d, without immediate tries. d replaces the policy's delay. The failure
// counts as an attempt like any other. After(nil, d) returns nil.
func After(err error, d time.Duration) error {
	if err == nil {
		return nil
	}
	return &disposition.Error{Kind: disposition.Failed, Reason: disposition.ReasonFailed, After: max(d, time.Millisecond), Err: err}
}

// Error is the error of the middleware for a message that it has given up. It
// unwraps to the last error of the handler.
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
