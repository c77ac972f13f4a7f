package retry

import (
	"context"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/internal/disposition"
	"github.com/watermill-once/once/internal/failpoint"
	"github.com/watermill-once/once/internal/meta"
	"github.com/watermill-once/once/internal/parked"
	"github.com/watermill-once/once/internal/telemetry"
)

// Middleware calls h, and again if it fails: at once as often as the policy
// says, then in later rounds, until when the message is parked and nil is
// returned, so that the transport's copy is acked. A panic of h counts as its
// error.
//
// When the policy is exhausted, or the error is [Permanent], it returns an
// [*Error]: the message is given up, and poison takes it. Without
// [Retries.Subscriber] nothing would bring a parked message back, so there are
// then only the immediate tries.
//
// A failure while the consumer shuts down counts as none: the message is
// handed back as it came.
//
// It belongs outside of dedup, and is [ErrInsideDedup] otherwise.
func (r *Retries) Middleware(h message.HandlerFunc) message.HandlerFunc {
	return func(msg *message.Message) ([]*message.Message, error) {
		if _, inside := parked.TxOf(msg.Context()); inside {
			return nil, disposition.NotCalled(fmt.Errorf("retry: %w", ErrInsideDedup))
		}
		a := &attempt{
			Retries:  r,
			ctx:      msg.Context(),
			delivery: parked.DeliveryOf(msg.Context()),
			msg:      msg,
			original: parked.Snapshot(msg),
		}
		a.delivery.Use.By(a.ctx)
		if claim := a.delivery.Claim; claim != nil {
			claim.Manage()
			a.attempts, a.rounds = claim.Attempts, claim.Rounds
		} else if a.delivery.Subscribed && msg.Metadata[meta.Redelivered] == "true" && disposition.Undecodable(a.ctx) == nil {
			return nil, a.setAside()
		}
		return a.run(h)
	}
}

// attempt is one delivery of a message, with its tries.
type attempt struct {
	*Retries

	ctx      context.Context
	delivery *parked.Delivery
	msg      *message.Message
	original *message.Message
	attempts int // calls of the handler in all
	rounds   int // of the policy in all

	undecided undecidedTries
	suspect   bool // it was handled before, without success
}

func (a *attempt) run(h message.HandlerFunc) ([]*message.Message, error) {
	for tries := 1; ; {
		if err := a.delivery.Held(); err != nil {
			a.log("Message is left to whoever has claimed it: its lease has ended", err, nil)
			return nil, a.handBack(err)
		}
		produced, end, err := a.call(h)
		if err == nil {
			end(handled)
			failpoint.Hit("retry/handled")
			if claim := a.delivery.Claim; claim != nil {
				claim.Handle() // and whoever claimed the row resolves it
			}
			a.delivery.Committed()
			return produced, nil
		}
		if a.delivery.ShuttingDown(a.ctx) {
			end(interrupted)
			return nil, a.handBack(err)
		}
		parked.Restore(a.msg, a.original)

		v := disposition.Of(err)
		switch {
		case v.Early != nil && a.delivery.Subscribed:
			end(early)
			return nil, a.parkEarly(*v.Early, v.After)
		case v.Kind == disposition.Undecided && !a.blames(v):
			end(undecided)
			if !a.holds(err) {
				return nil, a.handBack(err)
			}
			continue // nothing is charged
		case v.Kind == disposition.Undecided:
			err = fmt.Errorf("retry: %d calls of the handler came to no outcome, the last: %w", a.undecided.calls, err)
		case v.Kind != disposition.Failed:
			a.attempts++
			end(givenUp)
			return nil, a.giveUp(v.Kind, v.Reason, err)
		}
		a.attempts++
		a.suspect = true
		late := a.undecided.late
		a.undecided = undecidedTries{}
		policy := a.policy(err)
		// A handler that is slower than the lease, and keeps that from being renewed,
		// is charged too: the row tells whether it is still ours.
		if v.After > 0 || tries > policy.Immediate || late || a.delivery.Held() != nil {
			return nil, a.nextRound(err, policy, v.After, end)
		}
		end(again)
		failpoint.Hit("retry/again")
		a.log("Handler failed, trying again at once", err, nil)
		tries++
	}
}

// call calls h once. end is to be told what follows.
func (a *attempt) call(h message.HandlerFunc) (produced []*message.Message, end func(outcome int), err error) {
	began := time.Now()
	ctx, handling := a.instruments.tracer.Handle(
		a.ctx, a.instruments.traced(), a.delivery.Consumer, a.delivery.Topic, a.attempts+1, a.msg)
	a.msg.SetContext(parked.WithTried(ctx, a.msg, a.suspect))
	produced, err = disposition.Call(h, a.msg)
	a.msg.SetContext(a.ctx) // a handler may have left a cancelled one behind
	a.instruments.duration.Record(time.Since(began), telemetry.Succeeded(err))
	return produced, func(outcome int) {
		a.instruments.attempts.Add(1, outcome)
		handling.End(outcomes[outcome], err != nil)
	}, err
}

// nextRound parks the message, or gives it up if that was the last round.
func (a *attempt) nextRound(err error, policy Policy, after time.Duration, end func(outcome int)) error {
	a.rounds++
	if a.rounds > policy.Delayed || !a.delivery.Subscribed {
		end(givenUp)
		return a.giveUp(disposition.GivenUp, disposition.ReasonExhausted, err)
	}
	delay := after
	if delay == 0 {
		delay = policy.jittered(a.rounds)
	}
	end(parkedFor)
	failure := parked.Failure{Err: err, Reason: disposition.ReasonFailed, Attempts: a.attempts, Rounds: a.rounds}
	a.log("Handler failed, message is parked", err, watermill.LogFields{"delay": delay.Round(time.Millisecond).String()})
	return a.park(failure, delay)
}

// setAside parks a redelivered message before it is handled: the delivery
// before may have ended the process, and only in a row can that be counted.
// Its neighbours, prefetched with it, are handled from there all the same.
func (a *attempt) setAside() error {
	if err := a.park(parked.Failure{}, 0); err != nil {
		return err
	}
	a.instruments.setAside.Add(1, 0)
	return nil
}

// park moves the message to its row and due time; the transport's copy is then
// to be acked.
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

// parkEarly parks a message that came before its turn. Nothing is charged.
func (a *attempt) parkEarly(turn disposition.Turn, after time.Duration) error {
	return a.patience.Persist(a.ctx, a.delivery, "park the message until its turn", func(ctx context.Context) error {
		return a.store.ParkEarly(ctx, a.delivery, a.original, turn, after)
	})
}

// handBack gives the message back as it came, nothing charged.
func (a *attempt) handBack(err error) error {
	if claim := a.delivery.Claim; claim != nil {
		release := a.patience.Persist(a.ctx, a.delivery, "release the parked message", func(ctx context.Context) error {
			return a.store.Release(ctx, claim, 0)
		})
		if release != nil { // the lease will end by itself
			a.log("Cannot release the parked message", release, nil)
		}
	}
	return disposition.HandBack(err)
}

func (a *attempt) giveUp(kind disposition.Kind, reason string, err error) error {
	return &Error{
		Attempts: a.attempts, Reason: reason,
		err: &disposition.Error{Kind: kind, Reason: reason, Attempts: a.attempts, Err: err},
	}
}

func (a *attempt) log(text string, err error, more watermill.LogFields) {
	fields := watermill.LogFields{
		"message_uuid": a.original.UUID,
		"consumer":     a.delivery.Consumer,
		"topic":        a.delivery.Topic,
		"attempt":      a.attempts,
		"err":          err.Error(),
	}
	if stack := disposition.Stack(err); stack != "" {
		fields["stack"] = stack
	}
	a.config.Logger.Info(text, fields.Add(more))
}
