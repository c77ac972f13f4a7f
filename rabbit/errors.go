package rabbit

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/rabbitmq/amqp091-go"

	"github.com/watermill-once/once/internal/meta"
	"github.com/watermill-once/once/rabbit/internal/amqpwire"
)

// Reasons why a message was not confirmed, for use with errors.Is. The methods of
// PublishError group these reasons.
var (
	// ErrReturned means that the exchange routed the message to no queue.
	ErrReturned = errors.New("rabbit: returned as unroutable")

	// ErrNacked means that the broker could not store the message in every queue, for
	// example because a queue that rejects publishes is full.
	ErrNacked = errors.New("rabbit: nacked by the broker")

	// ErrRefused means that the broker closed the channel while no other message was unconfirmed, for
	// example because the exchange does not exist. The publisher also returns it if it cannot declare the
	// exchange, or if the marshaler fails.
	ErrRefused = errors.New("rabbit: refused")

	// ErrForbidden means that the user lacks a right for the exchange, the routing key or the
	// queue, or that its token has expired. It concerns every message of the destination.
	ErrForbidden = errors.New("rabbit: forbidden")

	// ErrTooLarge means that the message exceeds a limit of the protocol or the broker.
	ErrTooLarge = errors.New("rabbit: too large")

	// ErrInvalid means that AMQP cannot carry the message, such as the type of a header.
	ErrInvalid = errors.New("rabbit: invalid")

	// ErrUnknown means that the message was sent, and no response to it arrived.
	ErrUnknown = errors.New("rabbit: outcome unknown")

	// ErrUnavailable means that the message was not sent: there is no connection, the broker blocks
	// it, or it fails while it declares the exchange.
	ErrUnavailable = errors.New("rabbit: unavailable")

	// ErrClosed means that the Publisher, or the Subscriber, is closed.
	ErrClosed = errors.New("rabbit: closed")
)

// PublishError says why a message was not confirmed. It unwraps to a sentinel error, and to the
// underlying error, if any.
type PublishError struct {
	MessageID  string
	Topic      string
	Exchange   string
	RoutingKey string

	Code int

	// Reason is the text of the broker or of this package. It contains no credentials.
	Reason string

	kind     error
	cause    error
	oneTopic bool // the exchange cannot be declared, but other exchanges can be used
}

// Refused reports whether the broker refused this message, but may accept it later.
func (e *PublishError) Refused() bool {
	return e.is(ErrReturned, ErrNacked, ErrRefused)
}

// Unacceptable reports whether the broker can never accept the message as it is.
func (e *PublishError) Unacceptable() bool {
	return e.is(ErrTooLarge, ErrInvalid)
}

// Unavailable reports whether the message was not sent, for a reason other than the message.
func (e *PublishError) Unavailable() bool {
	return e.is(ErrUnavailable, ErrClosed, ErrForbidden)
}

// OneTopic reports whether the error is Unavailable for messages of one topic only.
func (e *PublishError) OneTopic() bool { return e.is(ErrForbidden) || e.oneTopic }

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

// remedy says how to make the broker accept a message that it refused, or "".
func (e *PublishError) remedy() string {
	switch {
	case e.is(ErrReturned):
		return "no queue receives the message: declare a queue, and bind it to the exchange with this routing key"
	case e.is(ErrNacked):
		return "a queue of this exchange is full, or has lost its majority: see rabbitmqctl list_queues"
	case e.is(ErrForbidden):
		return "grant the user the missing right with rabbitmqctl set_permissions or set_topic_permissions, or renew its token"
	case !e.is(ErrRefused):
	case e.Code == amqp091.NotFound:
		return "declare the exchange"
	case e.Code == amqp091.PreconditionFailed:
		return cmp.Or(existingRemedy(e.Reason), "use the settings that the exchange has in the broker, or delete it there")
	}
	return ""
}

// Unwrap returns the sentinel error, and the underlying error, if any.
func (e *PublishError) Unwrap() []error {
	if e.cause == nil {
		return []error{e.kind}
	}
	return []error{e.kind, e.cause}
}

// An invalid name can have any length.
func quote(name string) string {
	const limit = 300
	if len(name) > limit {
		return fmt.Sprintf("%q... (%d bytes)", name[:limit], len(name))
	}
	return fmt.Sprintf("%q", name)
}

// batchError is the error of Publish for several messages. Each of its methods returns true only if
// it does for every message. errors.As would find only the error of the first.
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

// join returns nil without errors, a single error itself, and otherwise a batchError.
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

const (
	// maxHeaders is half of RabbitMQ's default frame, 128 KiB, into which the headers must fit. The
	// rest is for headers that are added later, such as a trace.
	maxHeaders = 64 << 10

	// headerFraming is what AMQP adds to each header, in bytes.
	headerFraming = 6
)

// Check returns an error if RabbitMQ can never accept msg: if metadata would control the broker
// (see [Marshaler]), a metadata key has more than 255 bytes, or all metadata more than 64 KiB. Set
// it as outbox.Config.Check, so that the producer gets the error in its transaction. Otherwise such
// a message becomes a dead letter.
//
// Check knows neither the exchange and the routing key of a topic, nor the limit of payloads, see
// outbox.Config.MaxPayload. The error wraps [ErrInvalid] or [ErrTooLarge], and contains keys, but
// no values.
func Check(_ string, msg *message.Message) error {
	var long []string
	size := 0
	for key, value := range msg.Metadata {
		size += len(key) + len(value) + headerFraming
		if len(key) > amqpwire.MaxShortString {
			long = append(long, fmt.Sprintf("metadata %s is a key of %d bytes, the limit is %d", shortened(key), len(key), amqpwire.MaxShortString))
		}
	}
	if size > maxHeaders {
		long = append(long, fmt.Sprintf("metadata has %d bytes, the limit is %d", size, maxHeaders))
	}
	if err := checkSteering(msg.Metadata); err != nil {
		return err
	}
	return refusal(ErrTooLarge, long)
}

// Check returns an error if Publish would remove metadata of msg because it would control the
// broker. A forwarder calls it before Publish, and the message becomes a dead letter, so that its
// metadata is not lost without notice. If you wrap a forwarder's publisher, give the wrapper this
// method, too.
func (p *Publisher) Check(_ string, msg *message.Message) error { return checkSteering(msg.Metadata) }

func checkSteering(metadata message.Metadata) error {
	var steering []string
	for key := range metadata {
		if meta.Steering(key) {
			steering = append(steering, fmt.Sprintf("metadata %s would control RabbitMQ: rename it", shortened(key)))
		}
	}
	return refusal(ErrInvalid, steering)
}

// checkError contains no values of the metadata.
type checkError struct {
	kind    error
	reasons string
}

func refusal(kind error, reasons []string) error {
	if len(reasons) == 0 {
		return nil
	}
	slices.Sort(reasons)
	return &checkError{kind: kind, reasons: strings.Join(reasons, "; ")}
}

func (e *checkError) Error() string { return e.kind.Error() + ": " + e.reasons }

func (e *checkError) Unwrap() error { return e.kind }

// Unacceptable has the meaning of [PublishError].Unacceptable.
func (e *checkError) Unacceptable() bool { return true }

func shortened(key string) string {
	const limit = 64
	if len(key) > limit {
		return fmt.Sprintf("%q...", key[:limit])
	}
	return fmt.Sprintf("%q", key)
}
