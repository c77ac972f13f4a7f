package retry

import (
	"context"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/internal/backoff"
	"github.com/watermill-once/once/internal/chain"
	"github.com/watermill-once/once/internal/failpoint"
	"github.com/watermill-once/once/internal/meta"
	"github.com/watermill-once/once/internal/parkedrows"
	"github.com/watermill-once/once/internal/telemetry"
	"github.com/watermill-once/once/internal/usercode"
)

// Middleware calls h, and calls it again after a failure. It repeats the call immediately up to
// Policy.Immediate times, then in delayed rounds. Between the rounds, the message is parked.
// Middleware then returns nil, so that the transport's copy is acked. A panic of h counts as an
// error of h.
//
// If the policy allows no more rounds, or if the error is [Permanent], Middleware gives
// up on the message: it returns a [*givenUpError], and poison quarantines the message.
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
	return chain.Registered("retry", func(msg *message.Message) ([]*message.Message, error) {
		if _, inside := parkedrows.TxOf(msg.Context()); inside {
			return nil, chain.NotCalled(fmt.Errorf("retry: %w", parkedrows.ErrInsideDedup))
		}
		a := &attempt{
			Retries:  r,
			ctx:      msg.Context(),
			delivery: parkedrows.DeliveryOf(msg.Context()),
			msg:      msg,
			original: parkedrows.Snapshot(msg), // because handlers may change messages
		}
		a.handling = r.handlingOf(a.ctx)
		a.delivery.Use.By(a.ctx)
		if claim := a.delivery.Claim; claim != nil {
			claim.Manage()
			if why := chain.Unrunnable(a.ctx); why != nil { // poison would have given up on such a message without calling this middleware
				logNoQuarantine(r.config.Logger, a.delivery, msg.UUID, why)
				return nil, why
			}
			a.attempts, a.rounds = claim.Attempts, claim.Rounds
		} else if a.delivery.Subscribed && msg.Metadata[meta.Redelivered] == "true" && chain.Unrunnable(a.ctx) == nil {
			return nil, a.parkRedelivered()
		}
		return a.run(h)
	})
}

type attempt struct {
	*Retries

	ctx      context.Context
	delivery *parkedrows.Delivery
	msg      *message.Message
	original *message.Message
	attempts int // number of calls of the handler, over all deliveries
	rounds   int // number of delayed rounds, over all deliveries

	handling     *handling // nil without a breaker
	undecided    undecidedTries
	failedBefore bool // whether a try in this delivery has failed
}

func (a *attempt) run(h message.HandlerFunc) ([]*message.Message, error) {
	for tries, called := 1, false; ; {
		if called && !a.delivery.MayCall() {
			return nil, a.returnUncharged(errClosing)
		}
		if err := a.delivery.CheckLease(); err != nil {
			a.log("Lease of the message has ended, another process may handle it", err, nil)
			return nil, a.returnUncharged(err)
		}
		produced, end, err := a.call(h)
		called = true
		if err == nil {
			end(handled)
			a.succeeded()
			return produced, nil
		}
		if a.delivery.ShuttingDown(a.ctx) {
			end(interrupted)
			return nil, a.returnUncharged(err)
		}
		parkedrows.Restore(a.msg, a.original)

		v := a.disposition(err)
		switch {
		case v.Early != nil && a.delivery.Subscribed:
			end(early)
			a.handling.passed(meta.Identity(a.original), false)
			return nil, a.parkEarly(*v.Early, v.After)
		case v.Kind == chain.Undecided && !a.chargesUndecided(v):
			end(undecided)
			if !a.waitUndecided(err) {
				return nil, a.endUndecided(err)
			}
			called = !v.NotCalled
			continue
		case v.Contended:
			err = fmt.Errorf("retry: other transactions made %d handler calls in %v fail, last error: %w",
				a.undecided.calls, time.Since(a.undecided.since).Round(time.Second), err)
		case v.Kind == chain.Undecided:
			err = fmt.Errorf("retry: the outcome of %d handler calls is unknown, last error: %w", a.undecided.calls, err)
		case v.Kind != chain.Failed:
			a.attempts++
			end(givenUp)
			a.handling.passed(meta.Identity(a.original), true)
			return nil, a.giveUp(v.Kind, v.Reason, err)
		default:
			if open, delay, attempts, rounds := a.handling.failed(meta.Identity(a.original), v, err); open {
				end(notCounted)
				return nil, a.parkUncounted(err, delay, attempts, rounds)
			}
		}
		a.attempts++
		a.failedBefore = true
		a.conflicts.end(a.delivery.Consumer, meta.Identity(a.original))
		late := a.undecided.late || a.ctx.Err() != nil // after the deadline of a middleware, no transaction can begin
		a.undecided = undecidedTries{}
		policy := a.policy(err)
		// A handler that outlasts its lease, and perhaps prevents its renewal, has failed, too.
		// Parking fails if another process has claimed the row.
		if v.After > 0 || tries > policy.Immediate || late || a.delivery.CheckLease() != nil {
			return nil, a.nextRound(err, policy, v.After, end)
		}
		end(again)
		failpoint.Hit("retry/again")
		a.log("Handler failed, trying again at once", err, nil)
		tries++
	}
}

func (a *attempt) succeeded() {
	a.conflicts.end(a.delivery.Consumer, meta.Identity(a.original))
	a.handling.succeeded(meta.Identity(a.original))
	failpoint.Hit("retry/handled")
	if claim := a.delivery.Claim; claim != nil {
		claim.Handle() // the fetcher resolves the row after the ack
	}
	a.delivery.Committed()
}

// call calls h once. Pass the outcome of the try to end when it is known.
func (a *attempt) call(h message.HandlerFunc) (produced []*message.Message, end func(outcome int), err error) {
	began := time.Now()
	ctx, handling := a.instruments.processes.Handle(a.ctx, a.delivery.Consumer, a.delivery.Topic, a.attempts+1, a.msg)
	a.msg.SetContext(parkedrows.WithTried(ctx, a.msg, a.failedBefore))
	produced, err = chain.Call(h, a.msg)
	a.msg.SetContext(a.ctx) // the handler may have set a cancelled context
	a.instruments.duration.Record(time.Since(began), telemetry.Succeeded(err))
	return produced, func(outcome int) {
		a.instruments.attempts.Add(1, outcome)
		handling.End(outcomes[outcome], err != nil)
	}, err
}

// After the last round, nextRound gives up on the message.
func (a *attempt) nextRound(err error, policy Policy, after time.Duration, end func(outcome int)) error {
	a.rounds++
	if a.rounds > policy.Delayed || !a.delivery.Subscribed {
		end(givenUp)
		a.handling.givenUp(meta.Identity(a.original))
		return a.giveUp(chain.GivenUp, chain.ReasonExhausted, err)
	}
	delay := after
	if delay == 0 {
		delay = policy.backoff().Jittered(a.rounds)
	}
	if attempts, rounds := a.handling.nextRound(meta.Identity(a.original)); attempts > 0 {
		end(notCounted)
		return a.parkUncounted(err, delay, attempts, rounds)
	}
	end(parkedFor)
	failure := parkedrows.Failure{
		MessageID: a.original.UUID, Err: err, Reason: chain.ReasonFailed, Attempts: a.attempts, Rounds: a.rounds,
	}
	a.log("Handler failed, message is parked", err, watermill.LogFields{"delay": delay.Round(time.Millisecond).String()})
	return a.park(failure, delay)
}

// parkUncounted parks a message whose call has failed while the breaker is open. It gives back
// attempts and rounds of earlier calls that failed for the same reason.
func (a *attempt) parkUncounted(err error, delay time.Duration, attempts, rounds int) error {
	a.log("Handler failed, the breaker is open, the attempt is not counted", err,
		watermill.LogFields{"delay": delay.Round(time.Millisecond).String()})
	return a.park(parkedrows.Failure{
		MessageID: a.original.UUID, Err: err, Reason: chain.ReasonFailed,
		Attempts: max(a.attempts-attempts, 0), Rounds: max(a.rounds-rounds, 0),
	}, delay)
}

// parkRedelivered parks a redelivered message before its handler runs. The previous delivery may
// have killed the process, and only a row in the database can count crashes. Messages that were
// only prefetched are marked as redelivered, too.
func (a *attempt) parkRedelivered() error {
	if err := a.park(parkedrows.Failure{}, 0); err != nil {
		return err
	}
	a.handling.passed(meta.Identity(a.original), false)
	a.instruments.redelivered.Add(1, 0)
	return nil
}

// After park, the caller must ack the transport's copy.
func (a *attempt) park(f parkedrows.Failure, delay time.Duration) error {
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

func (a *attempt) parkEarly(turn chain.Turn, after time.Duration) error {
	return a.patience.Persist(a.ctx, a.delivery, "park the message until its turn", func(ctx context.Context) error {
		return a.store.ParkEarly(ctx, a.delivery, a.original, turn, after)
	})
}

func (a *attempt) returnUncharged(err error) error {
	if claim := a.delivery.Claim; claim != nil {
		release := a.patience.Persist(a.ctx, a.delivery, "release the parked message", func(ctx context.Context) error {
			return a.store.Release(ctx, claim, 0)
		})
		if release != nil { // if releasing fails, the row is due again after its lease
			a.log("Parked message cannot be released", release, nil)
		}
	}
	return chain.Returned(err)
}

func (a *attempt) giveUp(kind chain.Kind, reason string, err error) error {
	return &givenUpError{
		attempts: a.attempts,
		err:      &chain.Error{Kind: kind, Reason: reason, Attempts: a.attempts, Err: err},
	}
}

func (a *attempt) log(text string, err error, more watermill.LogFields) {
	named := meta.LogFields(a.original.UUID, a.original.Metadata, watermill.LogFields{
		"consumer": a.delivery.Consumer,
		"topic":    a.delivery.Topic,
		"attempt":  a.attempts,
		"err":      err.Error(),
	})
	if stack := usercode.Stack(err); stack != "" {
		named["stack"] = stack
	}
	a.config.Logger.Info(text, named.Add(more))
}

// maxUndecided is the number of consecutive undecided calls that count as one attempt: a restart of
// the database costs none, but a message that ends its own database session each time is not tried
// forever.
const maxUndecided = 3

type undecidedTries struct {
	since     time.Time // start of the first of these tries
	calls     int       // number of calls of the handler
	contended int       // number of calls that failed because of other transactions
	pauses    int
	late      bool // whether the tries took longer than Config.UnackedWait, or the message's context has ended
	logged    bool
}

// chargesUndecided counts a try with an undecided outcome, and reports whether it is an attempt. A
// try that did not call the handler is none, because the database was unreachable. Other tries
// count in two cases:
//
//   - The try is the last of maxUndecided calls.
//   - After the call, Config.UnackedWait or the deadline of a middleware, such as
//     Watermill's Timeout, has passed. The message would then return to the broker,
//     and the count of its calls would begin again.
//
// If other transactions made the call fail, it counts only if they have done so for
// longer than Config.UnackedWait, in this delivery and the ones before.
func (a *attempt) chargesUndecided(v *chain.Error) bool {
	u := &a.undecided
	if u.since.IsZero() {
		u.since = time.Now()
	}
	// The time since u.since includes the tries, because a connection may take long to fail.
	overdue := time.Since(u.since) > a.config.UnackedWait
	u.late = a.ctx.Err() != nil || overdue
	if v.NotCalled {
		return false
	}
	u.calls++
	a.failedBefore = true
	if v.Contended {
		u.contended++
		since := a.conflicts.since(a.delivery.Consumer, meta.Identity(a.original), u.since, a.config.UnackedWait)
		overdue = time.Since(since) > a.config.UnackedWait
		u.late = u.late || overdue
		return overdue
	}
	return u.calls-u.contended >= maxUndecided || u.late
}

// disposition returns what err means for the message. If other transactions have made earlier calls
// fail, and a deadline that all tries share then ends a call, the handler had less time than it was
// given, so this call does not count either.
func (a *attempt) disposition(err error) *chain.Error {
	v := chain.Of(err)
	if v.Kind == chain.Failed && !chain.Given(err) && a.undecided.contended > 0 && a.ctx.Err() != nil {
		return &chain.Error{Kind: chain.Undecided, Contended: true, Err: err}
	}
	return v
}

// endUndecided ends a delivery without counting an attempt. A message that other transactions made
// fail until a middleware's deadline is parked: the broker would return it at once.
func (a *attempt) endUndecided(err error) error {
	u := &a.undecided
	if u.contended == 0 || a.ctx.Err() == nil || !a.delivery.Subscribed || a.delivery.ShuttingDown(a.ctx) {
		return a.returnUncharged(err)
	}
	delay := undecidedPauses.Jittered(u.pauses)
	a.config.Logger.Error("Message is parked: other transactions make its transaction fail again and again", err,
		meta.LogFields(a.original.UUID, a.original.Metadata, watermill.LogFields{
			"consumer": a.delivery.Consumer, "topic": a.delivery.Topic, "calls": u.calls, "delay": delay.Round(time.Millisecond).String(),
		}))
	failure := parkedrows.Failure{
		MessageID: a.original.UUID, Err: err, Reason: chain.ReasonFailed, Attempts: a.attempts, Rounds: a.rounds,
	}
	return a.park(failure, delay)
}

var undecidedPauses = backoff.Exponential{Base: 50 * time.Millisecond, Max: 5 * time.Second, Jitter: 0.5}

// waitUndecided returns false if the message must return to the transport: it is late, or the
// consumer shuts down or is paused.
func (a *attempt) waitUndecided(err error) bool {
	u := &a.undecided
	u.pauses++
	if u.late || !a.delivery.Pauses.Open() || !a.delivery.Sleep(a.ctx, undecidedPauses.Jittered(u.pauses)) {
		return false
	}
	if waited := time.Since(u.since); !u.logged && waited >= logUndecidedAfter {
		u.logged = true
		text := "Message is held: the outcome of its attempt is unknown"
		if u.contended > 0 {
			text = "Message is held: other transactions make its transaction fail again and again"
		}
		a.config.Logger.Error(text, err,
			meta.LogFields(a.original.UUID, a.original.Metadata, watermill.LogFields{
				"consumer": a.delivery.Consumer, "topic": a.delivery.Topic,
			}))
	}
	return true
}

// logUndecidedAfter is how long a wait must last before it is logged. Short waits are normal:
// another process handles a copy. A long one may mean that the database is unreachable, or refuses
// this process.
const logUndecidedAfter = time.Second
