package forwarder

import (
	"errors"

	"github.com/watermill-once/once/internal/dispatch"
)

// Outcome is what an answer of the publisher says about a message.
type Outcome int

const (
	// Confirmed: the broker has it.
	Confirmed Outcome = iota

	// Refused: the broker said no to this very message, and may accept it
	// later. Counts as an attempt.
	Refused

	// Unacceptable: no broker will ever take this message. It becomes a dead
	// letter at once.
	Unacceptable

	// Unknown: it may or may not have been stored. It is published again, alone.
	Unknown

	// Unavailable: it was not sent, for a reason that is not its own.
	Unavailable
)

var outcomeNames = []string{
	Confirmed: "confirmed", Refused: "refused", Unacceptable: "unacceptable", Unknown: "unknown", Unavailable: "unavailable",
}

func (o Outcome) String() string {
	if o < 0 || int(o) >= len(outcomeNames) {
		return "invalid"
	}
	return outcomeNames[o]
}

// What an error may say about itself. package rabbit's do.
type (
	refuser      interface{ Refused() bool }
	unaccepter   interface{ Unacceptable() bool }
	unavailabler interface{ Unavailable() bool }
)

// Classify asks err, and the errors that it wraps, for methods Refused,
// Unacceptable and Unavailable that return true. An error that has none of
// them, or answers no, is [Unknown]; nil is [Confirmed].
//
// The answer of an error without any of these methods is not quite as good: it
// may be a refusal that does not say so. Such a message is counted as refused
// when it fails alone, another one then gets through, and it fails again.
func Classify(err error) Outcome {
	var (
		refused      refuser
		unacceptable unaccepter
		unavailable  unavailabler
	)
	switch {
	case err == nil:
		return Confirmed
	case errors.As(err, &unacceptable) && unacceptable.Unacceptable():
		return Unacceptable
	case errors.As(err, &refused) && refused.Refused():
		return Refused
	case errors.As(err, &unavailable) && unavailable.Unavailable():
		return Unavailable
	}
	return Unknown
}

// forScheduler returns what the outcome and its error mean for the scheduler.
// An outcome that does not exist is Unavailable.
func (o Outcome) forScheduler(err error) dispatch.Outcome {
	switch o {
	case Confirmed:
		return dispatch.Confirmed
	case Refused:
		return dispatch.Refused
	case Unacceptable:
		return dispatch.Unacceptable
	case Unknown:
		if cannotRefuse(err) {
			return dispatch.Unexplained
		}
		return dispatch.Unknown
	case Unavailable:
	}
	return dispatch.Unavailable
}

// cannotRefuse reports whether err has no way to say that a message was
// refused.
func cannotRefuse(err error) bool {
	var (
		refused      refuser
		unacceptable unaccepter
		unavailable  unavailabler
	)
	return !errors.As(err, &refused) && !errors.As(err, &unacceptable) && !errors.As(err, &unavailable)
}
