package rabbit

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	amqp "github.com/rabbitmq/amqp091-go"
)

// Reasons why a message was not confirmed, for use with errors.Is. The methods of
// PublishError group these reasons.
var (
	// ErrReturned means that the exchange routed the message to no queue.
	ErrReturned = errors.New("rabbit: returned as unroutable")

	// ErrNacked means that the broker could not store the message in every queue, for
	// example because a queue that rejects publishes is full.
	ErrNacked = errors.New("rabbit: nacked by the broker")

	// ErrRefused has three possible causes. First, the broker closed the channel while no
	// other message was unconfirmed, for example because the exchange does not exist or the
	// user lacks a permission. Second, the exchange could not be declared. Third, the
	// marshaler failed.
	ErrRefused = errors.New("rabbit: refused")

	// ErrTooLarge means that the message exceeds a limit of the protocol or the broker.
	ErrTooLarge = errors.New("rabbit: too large")

	// ErrInvalid means that AMQP cannot carry the message, for example because AMQP has
	// no type for the value of a header.
	ErrInvalid = errors.New("rabbit: invalid")

	// ErrUnknown means that the message was sent, and no response to it arrived.
	ErrUnknown = errors.New("rabbit: outcome unknown")

	// ErrUnavailable means that the message was not sent, because there is no
	// connection or the broker blocks the connection.
	ErrUnavailable = errors.New("rabbit: unavailable")

	// ErrClosed means that the message was not sent, because the Publisher is closed. The
	// methods of a closed Subscriber also return this error.
	ErrClosed = errors.New("rabbit: closed")
)

// PublishError says why a message was not confirmed. It unwraps to one of the package's
// sentinel errors, and to the underlying error if there is one.
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

// Refused reports whether the broker refused this message, but may accept it later.
func (e *PublishError) Refused() bool {
	return e.is(ErrReturned, ErrNacked, ErrRefused)
}

// Unacceptable reports whether the broker can never accept the message as it is.
func (e *PublishError) Unacceptable() bool {
	return e.is(ErrTooLarge, ErrInvalid)
}

// Unavailable reports whether the message was not sent, for a reason that has nothing to
// do with the message.
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
	if remedy := e.remedy(); remedy != "" {
		fmt.Fprintf(&text, "; %s", remedy)
	}
	return text.String()
}

// remedy returns advice on how to make the broker accept a message that it refused. If
// there is no advice, it returns "".
func (e *PublishError) remedy() string {
	switch {
	case e.is(ErrReturned):
		return "no queue receives the message: declare a queue, and bind it to the exchange with this routing key"
	case e.is(ErrNacked):
		return "a queue of this exchange is full, or has lost its majority: see rabbitmqctl list_queues"
	case !e.is(ErrRefused):
	case e.Code == amqp.NotFound:
		return "declare the exchange"
	case e.Code == amqp.AccessRefused:
		return "grant the user the missing right with rabbitmqctl set_permissions"
	case e.Code == amqp.PreconditionFailed:
		return "use the settings that the exchange has in the broker, or delete it there"
	}
	return ""
}

// Unwrap returns the sentinel error, and the underlying error if there is one.
func (e *PublishError) Unwrap() []error {
	if e.cause == nil {
		return []error{e.kind}
	}
	return []error{e.kind, e.cause}
}

// quote returns a name in quotes. It shortens long names, because an invalid name can
// have any length.
func quote(name string) string {
	const limit = 300
	if len(name) > limit {
		return fmt.Sprintf("%q... (%d bytes)", name[:limit], len(name))
	}
	return fmt.Sprintf("%q", name)
}

// batchError is the error of Publish for several messages. Each of its methods returns
// true only if the same method returns true for every message. Without these methods,
// errors.As would find only the error of the first message, and the caller would apply
// it to all messages.
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

// join joins the errors that are not nil. It returns nil if all errors are nil, the error
// itself if there is only one, and otherwise a batchError.
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
