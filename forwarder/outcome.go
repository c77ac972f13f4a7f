package forwarder

import (
	"errors"

	"github.com/watermill-once/once/internal/dispatch"
)

// Outcome is the result of a publish.
type Outcome int

const (
	// Confirmed means that the broker has stored the message.
	Confirmed Outcome = iota

	// Refused means that the broker refused this message and may accept it
	// later. It counts as an attempt.
	Refused

	// Unacceptable means that no broker will ever accept this message. It
	// becomes a dead letter at once.
	Unacceptable

	// Unknown means that the broker may or may not have stored the message. It
	// is published again, alone.
	Unknown

	// Unavailable means that the message was not sent, for a reason that is not
	// in the message.
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

// The methods that an error may have. The errors of package rabbit have them.
type (
	refuser      interface{ Refused() bool }
	unaccepter   interface{ Unacceptable() bool }
	unavailabler interface{ Unavailable() bool }
)

// Classify asks err, and the errors that it wraps, for methods Refused,
// Unacceptable and Unavailable that return true. It returns [Unknown] for any
// other error, and [Confirmed] for nil.
//
// An error without any of these methods may be a refusal that cannot say so. The
// forwarder treats such a message as refused when it fails alone, another message
// is then confirmed, and it fails alone again.
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
