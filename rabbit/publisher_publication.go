package rabbit

import (
	"errors"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/watermill-once/once/internal/amqpwire"
)

// publication is a message that is being published.
type publication struct {
	id, topic, exchange, key string

	size int // size of headers and body in bytes
	done func(error)

	number   uint64 // number of the publish on its confirm channel
	sent     time.Time
	deadline time.Time

	settled bool // the broker's ack or nack has arrived

	// overdue means that the outcome was already reported as unknown. The publication stays
	// in the list pending of its channel, because it may still be the reason why the broker
	// closes the channel.
	overdue bool
}

// outcome is the result of a publication. The field err is nil if the publication was
// confirmed.
type outcome struct {
	pub *publication
	err error
}

func (pub *publication) error(kind error, code int, reason string, cause error) *PublishError {
	return &PublishError{
		MessageID:  pub.id,
		Topic:      pub.topic,
		Exchange:   pub.exchange,
		RoutingKey: pub.key,
		Code:       code,
		Reason:     reason,
		kind:       kind,
		cause:      cause,
	}
}

// channelClosed returns the error for a publication whose channel was closed. The
// parameter kind is the sentinel error that attributeClose has chosen.
func (pub *publication) channelClosed(kind error, reason *amqp.Error) *PublishError {
	if !reason.Server {
		return pub.error(kind, 0, "connection lost: "+redactText(reason.Reason), nil)
	}
	return pub.error(kind, reason.Code, redactText(reason.Reason), reason)
}

// notEncoded returns the error for a publication that AMQP cannot carry.
func (pub *publication) notEncoded(err error) *PublishError {
	kind := ErrTooLarge
	if e, ok := errors.AsType[*amqpwire.EncodeError](err); ok && !e.TooLarge {
		kind = ErrInvalid
	}
	return pub.error(kind, 0, err.Error(), nil)
}

// notDeclared returns the error for a publication whose exchange could not be declared.
func (pub *publication) notDeclared(err error) *PublishError {
	if refused, ok := errors.AsType[*amqp.Error](err); ok {
		return pub.error(ErrRefused, refused.Code, "declare exchange: "+redactText(refused.Reason), redact(err))
	}
	err = redact(err)
	return pub.error(ErrRefused, 0, "declare exchange: "+err.Error(), err)
}
