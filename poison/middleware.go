package poison

import (
	"context"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/internal/parked"
	"github.com/watermill-once/once/internal/verdict"
)

// Middleware stores the messages that h fails for good, and then returns nil,
// so that they are acked. Behind retry that is what retry gives up; without
// it, what any error is returned for. A panic of h counts as its error.
//
// Errors that say nothing about the message are returned as they are: the
// router nacks, and the message comes again.
func (s *Store) Middleware(h message.HandlerFunc) message.HandlerFunc {
	return func(msg *message.Message) ([]*message.Message, error) {
		ctx := msg.Context()
		delivery := parked.DeliveryOf(ctx)
		original := parked.Snapshot(msg)

		produced, err := verdict.Call(h, msg)
		if err == nil {
			return produced, nil
		}
		v := verdict.Of(err)
		if v.Kind == verdict.Undecided || delivery.ShuttingDown(ctx) {
			return nil, err
		}
		return nil, s.quarantine(ctx, delivery, original, v, err)
	}
}

func (s *Store) quarantine(ctx context.Context, d *parked.Delivery, msg *message.Message, v *verdict.Error, cause error) error {
	failure := parked.Failure{Err: cause, Reason: v.Reason, Attempts: max(v.Attempts, 1)}
	err := s.patience.Persist(ctx, d, "quarantine the message", func(ctx context.Context) error {
		if d.Claim != nil {
			return s.parked.QuarantineClaim(ctx, d.Consumer, d.Claim, failure)
		}
		return s.parked.Quarantine(ctx, d, msg, failure)
	})
	if err != nil {
		return err
	}
	s.config.Logger.Error("Message is quarantined", cause, watermill.LogFields{
		"message_uuid": msg.UUID,
		"consumer":     d.Consumer,
		"topic":        d.Topic,
		"reason":       v.Reason,
		"attempt":      failure.Attempts,
	})
	if s.config.OnQuarantine != nil {
		s.config.OnQuarantine(msg, d.Consumer, v.Reason, cause)
	}
	return nil
}
