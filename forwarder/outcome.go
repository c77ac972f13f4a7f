package forwarder

import (
	"errors"

	"github.com/watermill-once/once/forwarder/internal/dispatch"
	"github.com/watermill-once/once/internal/dialect"
	"github.com/watermill-once/once/internal/usercode"
)

// Outcome is the result of a publish.
type Outcome int

const (
	// Confirmed means that the broker has stored the message.
	Confirmed Outcome = iota

	// Refused: the broker refused this message, but may accept it later. It costs an attempt.
	Refused

	// Unacceptable: the broker will never accept this message. It becomes a dead letter at once.
	Unacceptable

	// Unknown means that the broker may or may not have stored the message. It is published again,
	// by itself. No attempt is counted.
	Unknown

	// Unavailable means that the message was not sent, for a reason that has nothing to do with it.
	// No attempt is counted. If the error has a method OneTopic that returns true, other topics go
	// on.
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

// An error of a publisher may have some of these methods, as in package rabbit.
type (
	refuser      interface{ Refused() bool }
	unaccepter   interface{ Unacceptable() bool }
	unavailabler interface{ Unavailable() bool }
	oneTopicer   interface{ OneTopic() bool }
)

// Classify returns the outcome that err means. It calls the methods Unacceptable, Refused and
// Unavailable of err, or of an error that err wraps, and the first one that returns true decides.
// For nil, it returns [Confirmed], and for any other error [Unknown].
//
// Some publishers return errors without these methods even if the broker refused the message. The
// forwarder therefore also treats a message as refused if it fails when it is published by itself,
// then another message is confirmed, and the first one fails by itself again.
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

// A value that is not an Outcome becomes Unavailable.
func (o Outcome) forScheduler(err error) dispatch.Outcome {
	switch o {
	case Confirmed:
		return dispatch.Confirmed
	case Refused:
		return dispatch.Refused
	case Unacceptable:
		return dispatch.Unacceptable
	case Unknown:
		if cannotRefuse(err) && !conflicted(err) { // a publisher may write to a database
			return dispatch.Unexplained
		}
		return dispatch.Unknown
	case Unavailable:
		var one oneTopicer
		if errors.As(err, &one) && one.OneTopic() {
			return dispatch.TopicUnavailable
		}
	}
	return dispatch.Unavailable
}

// conflicted is for a publisher that writes to a database, where other transactions made it fail.
// The methods of err are code of the user.
func conflicted(err error) (is bool) {
	_ = usercode.Run(func() error { is = dialect.Conflicted(usercode.Original(err)); return nil })
	return is
}

// cannotRefuse reports whether err cannot say that the broker refused the message.
func cannotRefuse(err error) bool {
	var (
		refused      refuser
		unacceptable unaccepter
		unavailable  unavailabler
	)
	return !errors.As(err, &refused) && !errors.As(err, &unacceptable) && !errors.As(err, &unavailable)
}
