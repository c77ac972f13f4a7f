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

	// Refused means that the broker refused this message, but may accept it later. An
	// attempt is counted.
	Refused

	// Unacceptable means that the broker will never accept this message. It immediately
	// becomes a dead letter.
	Unacceptable

	// Unknown means that the broker may or may not have stored the message. The message
	// is published again, by itself. No attempt is counted.
	Unknown

	// Unavailable means that the message was not sent, for a reason that has nothing to
	// do with the message. No attempt is counted.
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

// An error may have one or more of these methods. The errors of package rabbit have
// them.
type (
	refuser      interface{ Refused() bool }
	unaccepter   interface{ Unacceptable() bool }
	unavailabler interface{ Unavailable() bool }
)

// Classify returns the outcome that err stands for. It looks for methods Refused,
// Unacceptable and Unavailable of err, and of the errors that err wraps, and uses the
// one that returns true. For nil it returns [Confirmed], and for any other error
// [Unknown].
//
// A publisher may return an error without these methods also if the broker refused the
// message. So the forwarder treats a message as refused if it fails when it is
// published by itself, another message is then confirmed, and the first one fails by
// itself again.
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

// forScheduler converts the outcome and its error to the type of package dispatch. A
// value that is not an Outcome becomes Unavailable.
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

// cannotRefuse returns true if err has none of the methods, so that it could not report
// a refused message.
func cannotRefuse(err error) bool {
	var (
		refused      refuser
		unacceptable unaccepter
		unavailable  unavailabler
	)
	return !errors.As(err, &refused) && !errors.As(err, &unacceptable) && !errors.As(err, &unavailable)
}
