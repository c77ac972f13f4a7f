// Package disposition is how the middlewares of one chain tell each other what an
// error means, without importing one another.
package disposition

import (
	"errors"
	"time"
)

// Kind is what an error says about the message that it was returned for.
type Kind int

const (
	// Failed is any error of a handler: an attempt that counts.
	Failed Kind = iota

	// Permanent is a failure that no further attempt can mend.
	Permanent

	// GivenUp is the last failure that the retry policy allows.
	GivenUp

	// Undecided says that nobody knows whether the message is to blame: the
	// message could not be parked, its transaction could not begin, its connection
	// was lost, the process is shutting down. The message is tried again and
	// nothing is charged, but if its handler was called (see Error.NotCalled) only
	// a few times in a row.
	Undecided
)

// Error is an error with a verdict.
type Error struct {
	Kind Kind

	// Reason is a short constant word for storage and metrics.
	Reason string

	// Attempts is how often the handler was tried, where that is known.
	Attempts int

	// After is the least time until the next attempt; 0 leaves it to the policy.
	After time.Duration

	// NotCalled says that the handler was not called, so that the message cannot
	// be to blame: it may be tried again for as long as it takes.
	NotCalled bool

	// Early says that the message came before its turn, and may be parked for
	// After. It is undecided, and the handler was not called.
	Early *Turn

	Err error
}

// Turn is the place of a message in a sequence.
type Turn struct {
	AggregateType, AggregateID string

	Sequence string // names the two in one text; valid UTF-8 without NUL
	Version  int64
}

func (e *Error) Error() string { return e.Err.Error() }

func (e *Error) Unwrap() error { return e.Err }

// Reasons that are stored with a message in quarantine.
const (
	ReasonPermanent   = "permanent"
	ReasonExhausted   = "exhausted"
	ReasonCrashed     = "crashed"
	ReasonInvalidID   = "invalid_id"
	ReasonCollision   = "collision"
	ReasonUndecodable = "undecodable"
	ReasonGap         = "gap"
	ReasonFailed      = "failed"
)

// Reasons are all of them.
var Reasons = []string{ //nolint:gochecknoglobals // a constant
	ReasonExhausted, ReasonFailed, ReasonPermanent, ReasonCrashed, ReasonInvalidID, ReasonCollision, ReasonUndecodable,
	ReasonGap,
}

// Of returns the outermost verdict in err's chain; an error without one is a
// plain failure.
func Of(err error) *Error {
	if v, ok := errors.AsType[*Error](err); ok {
		return v
	}
	return &Error{Kind: Failed, Reason: ReasonFailed, Err: err}
}

// Given says whether err has a verdict: a handler has given it, or one of our
// middlewares.
func Given(err error) bool {
	_, ok := errors.AsType[*Error](err)
	return ok
}

// Forever marks err as permanent.
func Forever(reason string, err error) error {
	return &Error{Kind: Permanent, Reason: reason, Err: err}
}

// NotYet marks err as undecided because the message is early: it is to be
// looked at again after that time.
func NotYet(turn Turn, after time.Duration, err error) error {
	return &Error{Kind: Undecided, NotCalled: true, Early: &turn, After: after, Err: err}
}

// HandBack marks err as undecided. The handler may have been called: if this
// goes on, the message is charged.
func HandBack(err error) error {
	return &Error{Kind: Undecided, Err: err}
}

// NotCalled marks err as undecided: it came before the handler was called.
func NotCalled(err error) error {
	return &Error{Kind: Undecided, NotCalled: true, Err: err}
}
