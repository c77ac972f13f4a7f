package rabbit

import (
	"errors"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// flight is one message on its way.
type flight struct {
	id, topic, exchange, key string

	size int // bytes of header and body
	done func(error)

	number   uint64 // on its lane
	sent     time.Time
	deadline time.Time

	settled bool

	// Reported as unknown, and kept because the broker may still close the
	// channel over it.
	overdue bool
}

// verdict is what a flight's done is called with.
type verdict struct {
	flight *flight
	err    error
}

func (f *flight) error(kind error, code int, reason string, cause error) *PublishError {
	return &PublishError{
		MessageID:  f.id,
		Topic:      f.topic,
		Exchange:   f.exchange,
		RoutingKey: f.key,
		Code:       code,
		Reason:     reason,
		kind:       kind,
		cause:      cause,
	}
}

// closed is the error of a flight whose channel was closed, and which is to
// blame for it or unknown.
func (f *flight) closed(kind error, reason *amqp.Error) *PublishError {
	if !reason.Server {
		return f.error(kind, 0, "connection lost: "+redactText(reason.Reason), nil)
	}
	return f.error(kind, reason.Code, redactText(reason.Reason), reason)
}

// limit is the error of a flight that a limitError stopped.
func (f *flight) limit(err error) *PublishError {
	kind := ErrTooLarge
	if errors.Is(err, ErrInvalid) {
		kind = ErrInvalid
	}
	return f.error(kind, 0, err.Error(), nil)
}

// refusal is the error of a flight whose exchange could not be declared.
func (f *flight) refusal(err error) *PublishError {
	if refused, ok := errors.AsType[*amqp.Error](err); ok {
		return f.error(ErrRefused, refused.Code, "declare exchange: "+redactText(refused.Reason), redact(err))
	}
	err = redact(err)
	return f.error(ErrRefused, 0, "declare exchange: "+err.Error(), err)
}
