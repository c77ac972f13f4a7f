package rabbit

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// What became of a message, for errors.Is. Which of them are refusals and
// which are not is said by the methods of PublishError.
var (
	// ErrReturned: the exchange had no queue for the message.
	ErrReturned = errors.New("rabbit: returned as unroutable")

	// ErrNacked: the broker could not store the message in every queue, for
	// instance because one that rejects publishes is full.
	ErrNacked = errors.New("rabbit: nacked by the broker")

	// ErrRefused: the message closed its channel while it was alone on it (the
	// exchange does not exist, no permission), the exchange could not be
	// declared, or the marshaler failed.
	ErrRefused = errors.New("rabbit: refused")

	// ErrTooLarge: the message is over a limit of the protocol or the broker.
	ErrTooLarge = errors.New("rabbit: too large")

	// ErrInvalid: AMQP has no form for the message, such as a header of a type
	// that it does not know.
	ErrInvalid = errors.New("rabbit: invalid")

	// ErrUnknown: the message was sent, and no answer to it came.
	ErrUnknown = errors.New("rabbit: outcome unknown")

	// ErrUnavailable: the message was not sent, because there is no connection
	// or the broker has blocked it.
	ErrUnavailable = errors.New("rabbit: unavailable")

	// ErrClosed: the message was not sent, because the Publisher is closed; or
	// what was asked for was not done, because the Subscriber is.
	ErrClosed = errors.New("rabbit: closed")
)

// PublishError says what became of one message that was not confirmed. It
// unwraps to one of the package's sentinels and to the error beneath it, if
// there is one.
type PublishError struct {
	MessageID  string
	Topic      string
	Exchange   string
	RoutingKey string

	// Code is the broker's reply code, or 0 where it gave none.
	Code int

	// Reason is the broker's text or our own, without credentials.
	Reason string

	kind  error
	cause error
}

// Refused reports whether the broker said no to this very message. It may
// accept it later.
func (e *PublishError) Refused() bool {
	return e.is(ErrReturned, ErrNacked, ErrRefused)
}

// Unacceptable reports whether the message can never be accepted as it is.
func (e *PublishError) Unacceptable() bool {
	return e.is(ErrTooLarge, ErrInvalid)
}

// Unavailable reports whether the message was not sent at all, for a reason
// that is not its own.
func (e *PublishError) Unavailable() bool {
	return e.is(ErrUnavailable, ErrClosed)
}

func (e *PublishError) is(kinds ...error) bool { return slices.Contains(kinds, e.kind) }

func (e *PublishError) Error() string {
	var text strings.Builder
	fmt.Fprintf(&text, "%v: message %s, topic %s, exchange %s, routing key %s",
		e.kind, quote(e.MessageID), quote(e.Topic), quote(e.Exchange), quote(e.RoutingKey))
	if e.Code != 0 {
		fmt.Fprintf(&text, ": %d", e.Code)
	}
	if e.Reason != "" {
		fmt.Fprintf(&text, ": %s", e.Reason)
	}
	return text.String()
}

// Unwrap returns the sentinel and the error beneath.
func (e *PublishError) Unwrap() []error {
	if e.cause == nil {
		return []error{e.kind}
	}
	return []error{e.kind, e.cause}
}

// quote keeps names that are over every limit out of the logs.
func quote(name string) string {
	const enough = 300
	if len(name) > enough {
		return fmt.Sprintf("%q... (%d bytes)", name[:enough], len(name))
	}
	return fmt.Sprintf("%q", name)
}

// batchError is what Publish returns for several messages. Its methods speak
// for all of them: they are true only where they are for every message in it,
// so that nobody takes the first error of a batch for the whole.
type batchError []error

func (b batchError) Error() string { return errors.Join(b...).Error() }

func (b batchError) Unwrap() []error { return b }

func (b batchError) Refused() bool { return b.all((*PublishError).Refused) }

func (b batchError) Unacceptable() bool { return b.all((*PublishError).Unacceptable) }

func (b batchError) Unavailable() bool { return b.all((*PublishError).Unavailable) }

func (b batchError) all(is func(*PublishError) bool) bool {
	for _, err := range b {
		if e, ok := errors.AsType[*PublishError](err); !ok || !is(e) {
			return false
		}
	}
	return true
}

// join leaves out what is nil; one error alone stays what it is.
func join(errs []error) error {
	var failed batchError
	for _, err := range errs {
		if err != nil {
			failed = append(failed, err)
		}
	}
	switch len(failed) {
	case 0:
		return nil
	case 1:
		return failed[0]
	}
	return failed
}
