package rabbit

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// The outcomes of a message that was not confirmed, for errors.Is. The methods of
// PublishError tell which of them are refusals.
var (
	// ErrReturned: the exchange routed the message to no queue.
	ErrReturned = errors.New("rabbit: returned as unroutable")

	// ErrNacked: the broker could not store the message in every queue, for
	// example because a queue that rejects publishes is full.
	ErrNacked = errors.New("rabbit: nacked by the broker")

	// ErrRefused: the broker closed the channel while the message was the only
	// outstanding one (the exchange does not exist, or the user has no
	// permission), the exchange could not be declared, or the marshaler failed.
	ErrRefused = errors.New("rabbit: refused")

	// ErrTooLarge: the message exceeds a limit of the protocol or the broker.
	ErrTooLarge = errors.New("rabbit: too large")

	// ErrInvalid: AMQP cannot carry the message, for example because a header has
	// a type that AMQP does not have.
	ErrInvalid = errors.New("rabbit: invalid")

	// ErrUnknown: the message was sent, and no response to it arrived.
	ErrUnknown = errors.New("rabbit: outcome unknown")

	// ErrUnavailable: the message was not sent, because there is no connection
	// or the broker blocks the connection.
	ErrUnavailable = errors.New("rabbit: unavailable")

	// ErrClosed: the message was not sent, because the Publisher is closed; or
	// the Subscriber did not do what was asked, because it is closed.
	ErrClosed = errors.New("rabbit: closed")
)

// PublishError is the outcome of one message that was not confirmed. It unwraps
// to one of the package's sentinel errors, and to the underlying error if there
// is one.
type PublishError struct {
	MessageID  string
	Topic      string
	Exchange   string
	RoutingKey string

	// Code is the broker's reply code, or 0 if the broker sent none.
	Code int

	// Reason is the text of the broker or of this package. It contains no
	// credentials.
	Reason string

	kind  error
	cause error
}

// Refused reports whether the broker refused this message. The broker may accept
// the message later.
func (e *PublishError) Refused() bool {
	return e.is(ErrReturned, ErrNacked, ErrRefused)
}

// Unacceptable reports whether the message can never be accepted as it is.
func (e *PublishError) Unacceptable() bool {
	return e.is(ErrTooLarge, ErrInvalid)
}

// Unavailable reports whether the message was not sent, for a reason that the
// message did not cause.
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

// Unwrap returns the sentinel error and the underlying error.
func (e *PublishError) Unwrap() []error {
	if e.cause == nil {
		return []error{e.kind}
	}
	return []error{e.kind, e.cause}
}

// quote shortens names, because an invalid name can have any length.
func quote(name string) string {
	const limit = 300
	if len(name) > limit {
		return fmt.Sprintf("%q... (%d bytes)", name[:limit], len(name))
	}
	return fmt.Sprintf("%q", name)
}

// batchError is the error of Publish for several messages. Its methods are true
// only if they are true for every message. Otherwise errors.As would find the
// first error, and a caller would take it for the whole batch.
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

// join returns the errors that are not nil: none as nil, one as itself, several
// as a batchError.
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
