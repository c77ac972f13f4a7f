package poison

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/internal/chain"
	"github.com/watermill-once/once/internal/failpoint"
	"github.com/watermill-once/once/internal/meta"
	"github.com/watermill-once/once/internal/parkedrows"
	"github.com/watermill-once/once/internal/telemetry"
	"github.com/watermill-once/once/internal/usercode"
)

// Middleware stores the messages for which h finally fails, and returns nil for them, so that they
// are acked. With retry inside, these are the messages that retry gives up on, without it all for
// which h fails. A panic of h counts as an error.
//
// Errors that say nothing about the message, such as a lost connection, are returned unchanged, so
// that the transport redelivers it. Without retry inside, a message is stored after three
// consecutive deliveries in which its handler was called and returned such an error, because it may
// be the cause. If other transactions made the handler's transaction fail, for example with a
// deadlock, the message is stored only after Config.UnackedWait. Until then it is nacked after a
// growing pause.
//
// Middleware must be outside of retry and dedup. Otherwise it returns an error without calling h,
// and the message is not acked. Inside of dedup, it would commit the writes of a failed handler.
// Inside of retry, it would quarantine every failure without another attempt.
func (s *Store) Middleware(h message.HandlerFunc) message.HandlerFunc {
	s.started.Do(s.observe)
	call := chain.Caller(h)
	return chain.Registered("poison", func(msg *message.Message) ([]*message.Message, error) {
		usercode.GrowStack() // Watermill has a new goroutine for each message
		ctx := msg.Context()
		if _, inside := parkedrows.TxOf(ctx); inside {
			return nil, chain.NotCalled(fmt.Errorf("poison: %w", parkedrows.ErrInsideDedup))
		}
		if parkedrows.Tried(ctx, msg) {
			return nil, chain.NotCalled(fmt.Errorf("poison: %w", errInsideRetry))
		}
		delivery := parkedrows.DeliveryOf(ctx)
		original := parkedrows.Snapshot(msg)

		produced, err := call(msg)
		if err == nil {
			s.undecided.forget(delivery.Consumer, original)
			return produced, nil
		}
		v := chain.Of(err)
		switch {
		case delivery.ShuttingDown(ctx), v.NotCalled && v.Kind == chain.Undecided:
			return nil, err
		case v.Kind == chain.Undecided:
			calls := s.undecided.add(delivery.Consumer, original, v.Contended)
			if !calls.tooMany(v, s.config.UnackedWait) {
				s.pauseContended(ctx, delivery, original, v, calls)
				return nil, err
			}
			err = calls.error(v, err)
			v = &chain.Error{Kind: chain.GivenUp, Reason: chain.ReasonFailed, Attempts: calls.all(), Err: err}
		}
		s.undecided.forget(delivery.Consumer, original)
		failpoint.Hit("poison/quarantine")
		err = s.quarantine(ctx, delivery, original, v, err)
		failpoint.Hit("poison/quarantined")
		return nil, err
	})
}

var errInsideRetry = errors.New(
	"the middleware is inside of retry's: from the outside in the order is poison, retry, dedup")

func (s *Store) quarantine(ctx context.Context, d *parkedrows.Delivery, msg *message.Message, v *chain.Error, cause error) error {
	failure := parkedrows.Failure{MessageID: msg.UUID, Err: cause, Reason: v.Reason, Attempts: v.Attempts}
	if !v.NotCalled {
		failure.Attempts = max(v.Attempts, 1)
	}
	var id int64
	ctx, end := s.instruments.tracer.Quarantine(ctx, s.instruments.traced(), d.Consumer, d.Topic, v.Reason, msg)
	err := s.patience.Persist(ctx, d, "quarantine the message", func(ctx context.Context) (err error) {
		id, err = s.parked.Quarantine(ctx, d, msg, failure, s.record)
		return err
	})
	if err != nil {
		end("", err)
		return err
	}
	named := meta.LogFields(msg.UUID, msg.Metadata, watermill.LogFields{
		"consumer": d.Consumer,
		"topic":    d.Topic,
		"reason":   v.Reason,
		"attempt":  failure.Attempts,
	})
	if id == 0 { // the message was settled before, or its claim was lost, and the new owner of the claim decides
		end(telemetry.Settled, nil)
		s.config.Logger.Info("Message failed and is not quarantined: it was settled before, or another handler has claimed it", named)
		return nil
	}
	end(telemetry.Stored, nil)
	named["entry"] = id
	if stack := usercode.Stack(cause); stack != "" {
		named["stack"] = stack
	}
	s.config.Logger.Error("Message is quarantined", cause, named)
	return nil
}

// record reads a new entry in the transaction that stores it. committed counts the entry and passes
// it to Config.OnQuarantine.
func (s *Store) record(ctx context.Context, tx *sql.Tx, id int64) (committed func(), err error) {
	entry, err := s.entry(ctx, tx, id)
	if err != nil {
		return nil, fmt.Errorf("read the entry: %w", err)
	}
	return func() {
		s.instruments.countQuarantined(entry)
		s.hook.add(entry)
	}, nil
}
