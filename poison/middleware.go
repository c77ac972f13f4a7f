package poison

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/internal/disposition"
	"github.com/watermill-once/once/internal/failpoint"
	"github.com/watermill-once/once/internal/fields"
	"github.com/watermill-once/once/internal/parked"
	"github.com/watermill-once/once/internal/telemetry"
)

// Middleware stores the messages for which h finally fails, and returns nil for them,
// so that they are acked. If retry is inside, these are the messages that retry gives
// up on. Without retry, these are all messages for which h returns an error. A panic of
// h counts as an error.
//
// Errors that say nothing about the message, such as a lost connection, are returned
// unchanged. The router then nacks the message, and the transport redelivers it.
// Without retry inside, there is one exception: if the handler of a message was called
// and returned such an error in three consecutive deliveries, the message is stored,
// because it may be the cause.
//
// Middleware must be outside of retry and dedup. Otherwise it returns an error without
// calling h, and the message is not acked. Inside of dedup, it would commit the writes
// of a failed handler. Inside of retry, it would quarantine every failure without
// another attempt.
func (q *Quarantine) Middleware(h message.HandlerFunc) message.HandlerFunc {
	q.started.Do(q.observe)
	return func(msg *message.Message) ([]*message.Message, error) {
		ctx := msg.Context()
		if _, inside := parked.TxOf(ctx); inside {
			return nil, disposition.NotCalled(fmt.Errorf("poison: %w", parked.ErrInsideDedup))
		}
		if parked.Tried(ctx, msg) {
			return nil, disposition.NotCalled(fmt.Errorf("poison: %w", errInsideRetry))
		}
		delivery := parked.DeliveryOf(ctx)
		original := parked.Snapshot(msg)

		produced, err := disposition.Call(h, msg)
		if err == nil {
			q.undecided.forget(delivery.Consumer, original)
			return produced, nil
		}
		v := disposition.Of(err)
		switch {
		case delivery.ShuttingDown(ctx), v.Kind == disposition.Undecided && (v.NotCalled || !q.undecided.add(delivery.Consumer, original)):
			return nil, err
		case v.Kind == disposition.Undecided:
			err = fmt.Errorf("poison: the outcome of %d handler calls is unknown, last error: %w", maxUndecided, err)
			v = &disposition.Error{Kind: disposition.GivenUp, Reason: disposition.ReasonFailed, Attempts: maxUndecided, Err: err}
		}
		q.undecided.forget(delivery.Consumer, original)
		failpoint.Hit("poison/quarantine")
		err = q.quarantine(ctx, delivery, original, v, err)
		failpoint.Hit("poison/quarantined")
		return nil, err
	}
}

// errInsideRetry means that the middlewares are in the wrong order.
var errInsideRetry = errors.New(
	"the middleware is inside of retry's: from the outside in the order is poison, retry, dedup")

func (q *Quarantine) quarantine(ctx context.Context, d *parked.Delivery, msg *message.Message, v *disposition.Error, cause error) error {
	failure := parked.Failure{Err: cause, Reason: v.Reason, Attempts: v.Attempts}
	if !v.NotCalled {
		failure.Attempts = max(v.Attempts, 1)
	}
	var id int64
	ctx, end := q.instruments.tracer.Quarantine(ctx, q.instruments.traced(), d.Consumer, d.Topic, v.Reason, msg)
	err := q.patience.Persist(ctx, d, "quarantine the message", func(ctx context.Context) (err error) {
		id, err = q.table.parked.Quarantine(ctx, d, msg, failure, q.record)
		return err
	})
	if err != nil {
		end("", err)
		return err
	}
	named := fields.Message(msg.UUID, msg.Metadata, watermill.LogFields{
		"consumer": d.Consumer,
		"topic":    d.Topic,
		"reason":   v.Reason,
		"attempt":  failure.Attempts,
	})
	if id == 0 { // the message was settled before, or its claim was lost, and the new owner of the claim decides
		end(telemetry.Settled, nil)
		q.config.Logger.Info("Message failed and is not quarantined: it was settled before, or another handler has claimed it", named)
		return nil
	}
	end(telemetry.Stored, nil)
	named["entry"] = id
	if stack := disposition.Stack(cause); stack != "" {
		named["stack"] = stack
	}
	q.config.Logger.Error("Message is quarantined", cause, named)
	return nil
}

// record publishes a copy of a new entry to Config.CopyTo, if that is set. It uses the
// transaction that stores the entry. It returns a function to call after the commit.
// This function counts the entry, and passes it to Config.OnQuarantine.
func (q *Quarantine) record(ctx context.Context, tx *sql.Tx, id int64) (committed func(), err error) {
	entry, err := q.table.getIn(ctx, tx, id)
	if err != nil {
		return nil, fmt.Errorf("read the entry: %w", err)
	}
	return func() {
		q.instruments.countQuarantined(entry)
		q.hook.add(entry)
	}, q.publishCopy(ctx, tx, entry)
}
