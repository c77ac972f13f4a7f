package poison

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/internal/disposition"
	"github.com/watermill-once/once/internal/failpoint"
	"github.com/watermill-once/once/internal/parked"
	"github.com/watermill-once/once/internal/telemetry"
)

// Middleware stores the messages that h fails for good, and then returns nil,
// so that they are acked. Behind retry that is what retry gives up; without
// it, what any error is returned for. A panic of h counts as its error.
//
// Errors that say nothing about the message are returned as they are: the
// router nacks, and the message comes again.
//
// It belongs outside of retry and dedup, and is [ErrInsideRetry] or
// [ErrInsideDedup] otherwise.
func (s *Quarantine) Middleware(h message.HandlerFunc) message.HandlerFunc {
	s.listening.Do(func() {
		s.parked.Listen(listener{s})
		s.observe()
	})
	return func(msg *message.Message) ([]*message.Message, error) {
		ctx := msg.Context()
		if _, inside := parked.TxOf(ctx); inside {
			return nil, disposition.NotCalled(fmt.Errorf("poison: %w", ErrInsideDedup))
		}
		if parked.Tried(ctx, msg) {
			return nil, disposition.NotCalled(fmt.Errorf("poison: %w", ErrInsideRetry))
		}
		delivery := parked.DeliveryOf(ctx)
		original := parked.Snapshot(msg)
		if !(listener{s}).Handles(delivery.Consumer) {
			s.consumers.Store(delivery.Consumer, nil)
		}

		produced, err := disposition.Call(h, msg)
		if err == nil {
			return produced, nil
		}
		v := disposition.Of(err)
		if v.Kind == disposition.Undecided || delivery.ShuttingDown(ctx) {
			return nil, err
		}
		failpoint.Hit("poison/quarantine")
		err = s.quarantine(ctx, delivery, original, v, err)
		failpoint.Hit("poison/quarantined")
		return nil, err
	}
}

func (s *Quarantine) quarantine(ctx context.Context, d *parked.Delivery, msg *message.Message, v *disposition.Error, cause error) error {
	failure := parked.Failure{Err: cause, Reason: v.Reason, Attempts: max(v.Attempts, 1)}
	var entry parked.Entry
	ctx, end := s.instruments.tracer.Quarantine(ctx, s.instruments.traced(), d.Consumer, d.Topic, v.Reason, msg)
	err := s.patience.Persist(ctx, d, "quarantine the message", func(ctx context.Context) (err error) {
		entry, err = s.parked.Quarantine(ctx, d, msg, failure, s.copyOut)
		return err
	})
	if err != nil {
		end("", err)
		return err
	}
	fields := watermill.LogFields{
		"message_uuid": msg.UUID,
		"consumer":     d.Consumer,
		"topic":        d.Topic,
		"reason":       v.Reason,
		"attempt":      failure.Attempts,
	}
	if entry.ID == 0 { // or the claim was lost, and whoever has it says so
		end(telemetry.Settled, nil)
		s.config.Logger.Info("Message failed, and is not quarantined: the same message was settled before, or is in hand", fields)
		return nil
	}
	end(telemetry.Stored, nil)
	fields["entry"] = entry.ID
	if stack := disposition.Stack(cause); stack != "" {
		fields["stack"] = stack
	}
	s.config.Logger.Error("Message is quarantined", cause, fields)
	s.arrived(entry)
	return nil
}

// arrived tells of an entry that was stored.
func (s *Quarantine) arrived(e parked.Entry) {
	s.instruments.arrived(e)
	s.hook.tell(Entry(e.Shown))
}

// listener hears what retry puts into quarantine without giving it to the
// chain.
type listener struct{ s *Quarantine }

func (l listener) Handles(consumer string) bool {
	_, ok := l.s.consumers.Load(consumer)
	return ok
}

func (l listener) Aside(ctx context.Context, tx *sql.Tx, e parked.Entry) error {
	return l.s.copyOut(ctx, tx, e)
}

func (l listener) Arrived(e parked.Entry) { l.s.arrived(e) }
