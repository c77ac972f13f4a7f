// Package chain defines what an error means for a message: retry the message,
// give up on it, or decide later. The middlewares of a chain use these definitions, so
// that they need not import each other.
package chain

import (
	"context"
	"errors"
	"time"

	"github.com/watermill-once/once/internal/dialect"
	"github.com/watermill-once/once/internal/usercode"
)

// Kind is the meaning of an error for its message.
type Kind int

const (
	// Failed is an ordinary error of a handler. It counts as an attempt.
	Failed Kind = iota

	// Permanent is a failure that further attempts cannot change.
	Permanent

	// GivenUp is a failure after which the retry policy allows no further attempt.
	GivenUp

	// Undecided means that the cause is uncertain, and need not be the message: the message
	// could not be parked, its transaction could not begin, its connection was lost, or the
	// process shuts down. The message is tried again, and no attempt is counted. If the
	// handler was called (see Error.NotCalled), an attempt is counted after a few
	// consecutive tries of this kind, except if the cause is Error.Contended.
	Undecided
)

// Error is an error with a disposition.
type Error struct {
	Kind Kind

	// Reason is a short word for storage and metrics. It is one of the Reason constants.
	Reason string

	// Attempts is the number of calls of the handler, or 0 if it is unknown.
	Attempts int

	// After is the shortest time until the next attempt. If it is 0, the retry policy decides.
	After time.Duration

	// NotCalled means that the handler was not called, so the message cannot be the cause.
	// It can also mean that the caller need not count the call, see [Returned]. In both
	// cases, an Undecided message may be tried again without a limit.
	NotCalled bool

	// Contended means that other transactions made the handler's transaction fail, for
	// example with a deadlock. Kind is Undecided. The same call may succeed a moment later,
	// so only a long time of such calls counts as an attempt.
	Contended bool

	// Unavailable means that a service that the handler calls is down. Own means that the cause is
	// the message alone. Both are for the breaker of package retry.
	Unavailable, Own bool

	// Early is set if the message arrived before an earlier version of its aggregate.
	// The message may be parked for After. Kind is Undecided, and NotCalled is true.
	Early *Turn

	Err error
}

// Turn is the place of a message in the versions of an aggregate.
type Turn struct {
	AggregateType, AggregateID string

	Sequence string // AggregateType and AggregateID in one string; valid UTF-8 without NUL
	Version  int64
}

func (e *Error) Error() string { return e.Err.Error() }

func (e *Error) Unwrap() error { return e.Err }

// Mark implements usercode.Marked.
func (e *Error) Mark() usercode.Mark {
	if e.Kind == Permanent {
		return usercode.Permanent
	}
	return usercode.Undecided
}

// Reasons of messages in quarantine, as stored in the database.
const (
	ReasonPermanent   = "permanent"
	ReasonExhausted   = "exhausted"
	ReasonCrashed     = "crashed"
	ReasonInvalidID   = "invalid_id"
	ReasonCollision   = "collision"
	ReasonUndecodable = "undecodable"
	ReasonGap         = "gap"
	ReasonStale       = "stale"
	ReasonFailed      = "failed"
	ReasonCancelled   = "cancelled" // set if an operator cancels a message; no consumer sets it
)

// Reasons lists the reasons for which a consumer quarantines a message.
var Reasons = []string{ //nolint:gochecknoglobals // a constant
	ReasonExhausted, ReasonFailed, ReasonPermanent, ReasonCrashed, ReasonInvalidID, ReasonCollision, ReasonUndecodable,
	ReasonGap, ReasonStale,
}

// Of returns the outermost disposition in the chain of err. If err has none, Of returns an Error
// whose Kind is Undecided if other transactions have caused err, and Failed otherwise.
func Of(err error) *Error {
	if m, ok := errors.AsType[usercode.Marked](err); ok {
		return ofMarked(m)
	}
	if dialect.Conflicted(err) {
		return &Error{Kind: Undecided, Contended: true, Err: err}
	}
	return &Error{Kind: Failed, Reason: ReasonFailed, Err: err}
}

func ofMarked(m usercode.Marked) *Error {
	if v, ok := m.(*Error); ok {
		return v
	}
	if m.Mark() == usercode.Permanent {
		return &Error{Kind: Permanent, Reason: ReasonPermanent, Err: m}
	}
	return &Error{Kind: Undecided, Err: m}
}

// Given reports whether err has a disposition from a handler or a middleware.
func Given(err error) bool {
	_, ok := errors.AsType[usercode.Marked](err)
	return ok
}

// Forever marks err as Permanent.
func Forever(reason string, err error) error {
	return &Error{Kind: Permanent, Reason: reason, Err: err}
}

// NotYet marks err as Undecided because the message is early. The message is tried again
// after the given delay.
func NotYet(turn Turn, delay time.Duration, err error) error {
	return &Error{Kind: Undecided, NotCalled: true, Early: &turn, After: delay, Err: err}
}

// HandBack marks err as Undecided for a message whose handler may have been called.
// After a few consecutive errors of this kind, an attempt is counted.
func HandBack(err error) error {
	return &Error{Kind: Undecided, Err: err}
}

// NotCalled marks err as Undecided for a message whose handler was not called.
func NotCalled(err error) error {
	return &Error{Kind: Undecided, NotCalled: true, Err: err}
}

// Returned marks err as Undecided for a message that goes back to the transport, or
// stays in its row. The calls of the handler were already counted.
func Returned(err error) error {
	return &Error{Kind: Undecided, NotCalled: true, Err: err}
}

type unrunnableKey struct{}

// WithUnrunnable returns a copy of ctx that marks its message as unrunnable for the given reason.
func WithUnrunnable(ctx context.Context, reason *Error) context.Context {
	return context.WithValue(ctx, unrunnableKey{}, reason)
}

// Unrunnable returns the reason why no handler may run the message of ctx, as an
// [*Error]. It returns nil if a handler may run the message.
func Unrunnable(ctx context.Context) error {
	if why, ok := ctx.Value(unrunnableKey{}).(*Error); ok {
		return why
	}
	if why := usercode.Undecodable(ctx); why != nil {
		return &Error{Kind: Permanent, Reason: ReasonUndecodable, Err: why}
	}
	return nil
}
