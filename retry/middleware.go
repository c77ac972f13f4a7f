package retry

import (
	"context"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/internal/disposition"
	"github.com/watermill-once/once/internal/failpoint"
	"github.com/watermill-once/once/internal/fields"
	"github.com/watermill-once/once/internal/meta"
	"github.com/watermill-once/once/internal/parked"
	"github.com/watermill-once/once/internal/telemetry"
)

// Middleware calls h, and calls it again after a failure. It first repeats the call
// immediately, up to Policy.Immediate times. After that, it repeats the calls in
// delayed rounds. Between the rounds, the message is parked. Middleware then returns
// nil, so that the transport's copy is acked. A panic of h counts as an error of h.
//
// If the policy allows no more rounds, or if the error is [Permanent], Middleware gives
// up on the message: it returns an [*Error], and poison quarantines the message.
// Without [Retries.Subscriber], a parked message would not be delivered again. In this
// case Middleware makes only the immediate tries.
//
// If h fails while the consumer shuts down, no attempt is counted, and the message
// returns to the transport unchanged.
//
// Middleware must be outside of dedup. Otherwise each message fails without a call of
// h, and returns to the transport.
func (r *Retries) Middleware(h message.HandlerFunc) message.HandlerFunc {
	r.use()
	return func(msg *message.Message) ([]*message.Message, error) {
		if _, inside := parked.TxOf(msg.Context()); inside {
			return nil, disposition.NotCalled(fmt.Errorf("retry: %w", parked.ErrInsideDedup))
		}
		a := &attempt{
			Retries:  r,
			ctx:      msg.Context(),
			delivery: parked.DeliveryOf(msg.Context()),
			msg:      msg,
			original: parked.Snapshot(msg), // because handlers may change messages
		}
		a.delivery.Use.By(a.ctx)
		if claim := a.delivery.Claim; claim != nil {
			claim.Manage()
			if why := disposition.Unrunnable(a.ctx); why != nil { // poison would have given up on such a message without calling this middleware
				logNoQuarantine(r.config.Logger, a.delivery, msg.UUID, why)
				return nil, why
			}
			a.attempts, a.rounds = claim.Attempts, claim.Rounds
		} else if a.delivery.Subscribed && msg.Metadata[meta.Redelivered] == "true" && disposition.Unrunnable(a.ctx) == nil {
			return nil, a.parkRedelivered()
		}
		return a.run(h)
	}
}

// attempt is one delivery of a message, with all tries of this delivery.
type attempt struct {
	*Retries

	ctx      context.Context
	delivery *parked.Delivery
	msg      *message.Message
	original *message.Message
	attempts int // number of calls of the handler, over all deliveries
	rounds   int // number of delayed rounds, over all deliveries

	undecided    undecidedTries
	failedBefore bool // whether a try in this delivery has failed
}

func (a *attempt) run(h message.HandlerFunc) ([]*message.Message, error) {
	for tries := 1; ; {
		if err := a.delivery.CheckLease(); err != nil {
			a.log("Lease of the message has ended, another process may handle it", err, nil)
			return nil, a.returnUncharged(err)
		}
		produced, end, err := a.call(h)
		if err == nil {
			end(handled)
			failpoint.Hit("retry/handled")
			if claim := a.delivery.Claim; claim != nil {
				claim.Handle() // the fetcher resolves the row after the ack
			}
			a.delivery.Committed()
			return produced, nil
		}
		if a.delivery.ShuttingDown(a.ctx) {
			end(interrupted)
			return nil, a.returnUncharged(err)
		}
		parked.Restore(a.msg, a.original)

		v := disposition.Of(err)
		switch {
		case v.Early != nil && a.delivery.Subscribed:
			end(early)
			return nil, a.parkEarly(*v.Early, v.After)
		case v.Kind == disposition.Undecided && !a.chargesUndecided(v):
			end(undecided)
			if !a.waitUndecided(err) {
				return nil, a.returnUncharged(err)
			}
			continue
		case v.Kind == disposition.Undecided:
			err = fmt.Errorf("retry: the outcome of %d handler calls is unknown, last error: %w", a.undecided.calls, err)
		case v.Kind != disposition.Failed:
			a.attempts++
			end(givenUp)
			return nil, a.giveUp(v.Kind, v.Reason, err)
		}
		a.attempts++
		a.failedBefore = true
		late := a.undecided.late || a.ctx.Err() != nil // after the deadline of a middleware, no transaction can begin
		a.undecided = undecidedTries{}
		policy := a.policy(err)
		// A handler may run longer than the lease, and may even prevent its renewal. Such
		// a failure is also counted. Parking fails if another process has claimed the
		// row.
		if v.After > 0 || tries > policy.Immediate || late || a.delivery.CheckLease() != nil {
			return nil, a.nextRound(err, policy, v.After, end)
		}
		end(again)
		failpoint.Hit("retry/again")
		a.log("Handler failed, trying again at once", err, nil)
		tries++
	}
}

// call calls h once. When the outcome of the try is known, the caller must pass it to
// the returned function end.
func (a *attempt) call(h message.HandlerFunc) (produced []*message.Message, end func(outcome int), err error) {
	began := time.Now()
	ctx, handling := a.instruments.tracer.Handle(
		a.ctx, a.instruments.traced(), a.delivery.Consumer, a.delivery.Topic, a.attempts+1, a.msg)
	a.msg.SetContext(parked.WithTried(ctx, a.msg, a.failedBefore))
	produced, err = disposition.Call(h, a.msg)
	a.msg.SetContext(a.ctx) // the handler may have set a cancelled context
	a.instruments.duration.Record(time.Since(began), telemetry.Succeeded(err))
	return produced, func(outcome int) {
		a.instruments.attempts.Add(1, outcome)
		handling.End(outcomes[outcome], err != nil)
	}, err
}

// nextRound parks the message for its next round. After the last round, it gives up on
// the message.
func (a *attempt) nextRound(err error, policy Policy, after time.Duration, end func(outcome int)) error {
	a.rounds++
	if a.rounds > policy.Delayed || !a.delivery.Subscribed {
		end(givenUp)
		return a.giveUp(disposition.GivenUp, disposition.ReasonExhausted, err)
	}
	delay := after
	if delay == 0 {
		delay = policy.backoff().Jittered(a.rounds)
	}
	end(parkedFor)
	failure := parked.Failure{Err: err, Reason: disposition.ReasonFailed, Attempts: a.attempts, Rounds: a.rounds}
	a.log("Handler failed, message is parked", err, watermill.LogFields{"delay": delay.Round(time.Millisecond).String()})
	return a.park(failure, delay)
}

// parkRedelivered parks a redelivered message before its handler runs. The previous
// delivery may have killed the process, and only a row in the database can count
// crashes. The broker also marks messages as redelivered that were only prefetched, and
// not handled, when the process died. These messages are parked, too.
func (a *attempt) parkRedelivered() error {
	if err := a.park(parked.Failure{}, 0); err != nil {
		return err
	}
	a.instruments.redelivered.Add(1, 0)
	return nil
}

// park stores the message with its due time. The caller must then ack the transport's
// copy.
func (a *attempt) park(f parked.Failure, delay time.Duration) error {
	failpoint.Hit("retry/park")
	err := a.patience.Persist(a.ctx, a.delivery, "park the message", func(ctx context.Context) error {
		if claim := a.delivery.Claim; claim != nil {
			return a.store.Postpone(ctx, a.delivery.Consumer, claim, f, delay)
		}
		return a.store.Park(ctx, a.delivery, a.original, f, delay)
	})
	failpoint.Hit("retry/parked")
	return err
}

// parkEarly parks a message that arrived before an earlier version of its aggregate. No
// attempt is counted.
func (a *attempt) parkEarly(turn disposition.Turn, after time.Duration) error {
	return a.patience.Persist(a.ctx, a.delivery, "park the message until its turn", func(ctx context.Context) error {
		return a.store.ParkEarly(ctx, a.delivery, a.original, turn, after)
	})
}

// returnUncharged returns the message to the transport, or releases its row. No attempt
// is counted.
func (a *attempt) returnUncharged(err error) error {
	if claim := a.delivery.Claim; claim != nil {
		release := a.patience.Persist(a.ctx, a.delivery, "release the parked message", func(ctx context.Context) error {
			return a.store.Release(ctx, claim, 0)
		})
		if release != nil { // if releasing fails, the row is due again after its lease
			a.log("Parked message cannot be released", release, nil)
		}
	}
	return disposition.Returned(err)
}

func (a *attempt) giveUp(kind disposition.Kind, reason string, err error) error {
	return &Error{
		Attempts: a.attempts, Reason: reason,
		err: &disposition.Error{Kind: kind, Reason: reason, Attempts: a.attempts, Err: err},
	}
}

func (a *attempt) log(text string, err error, more watermill.LogFields) {
	named := fields.Message(a.original.UUID, a.original.Metadata, watermill.LogFields{
		"consumer": a.delivery.Consumer,
		"topic":    a.delivery.Topic,
		"attempt":  a.attempts,
		"err":      err.Error(),
	})
	if stack := disposition.Stack(err); stack != "" {
		named["stack"] = stack
	}
	a.config.Logger.Info(text, named.Add(more))
}
