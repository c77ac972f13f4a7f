package retry

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/internal/chain"
	"github.com/watermill-once/once/internal/failpoint"
	"github.com/watermill-once/once/internal/meta"
	"github.com/watermill-once/once/internal/parkedrows"
	"github.com/watermill-once/once/internal/telemetry"
	"github.com/watermill-once/once/schema"
)

// startHandingOut starts the goroutines that pass messages to handlers, and the one that resolves
// rows. Call end when no message is in flight.
func (f *fetcher) startHandingOut(ctx context.Context, out chan<- *message.Message) (end func()) {
	f.queue = newFairQueue(f.closing)
	all := f.capacity() + f.removedTogether()
	f.handled = make(chan *parkedrows.Claim, all)
	f.finished = make(chan *parkedrows.Claim, all)
	var working, resolving sync.WaitGroup
	for range f.concurrency {
		working.Go(func() {
			for c, ok := f.queue.next(); ok; c, ok = f.queue.next() {
				f.deliver(ctx, c, out)
			}
		})
	}
	resolving.Go(func() { f.resolve(ctx) })
	return func() {
		f.queue.close()
		working.Wait()
		close(f.handled)
		resolving.Wait()
	}
}

func (f *fetcher) deliver(ctx context.Context, c parkedrows.Claimed, out chan<- *message.Message) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	msg, ok := f.prepare(ctx, c)
	if !ok {
		f.finished <- c.Claim
		return
	}
	d := parkedrows.DeliveryOf(msg.Context())
	failpoint.Hit("retry/hand-out")
	switch f.handOut(msg, out) {
	case kept:
		f.release(ctx, d, 0)
		f.finished <- c.Claim
		return
	case late:
		f.abandon(ctx, d)
		return
	default:
	}
	select {
	case <-msg.Acked():
		f.settle(ctx, d, true)
	case <-msg.Nacked():
		f.settle(ctx, d, false)
	case <-f.closeTimeout:
		f.abandon(ctx, d)
	}
}

// Results of handOut.
const (
	passedOn = iota
	kept     // the consumer is paused, or shuts down
	late     // Config.CloseTimeout has passed
)

func (f *fetcher) handOut(msg *message.Message, out chan<- *message.Message) (result int) {
	begins := f.limiter.forMessage(msg, parkedrows.FromRows)
	defer begins.end()
	for probe := false; ; {
		intake, changed := f.pauses.Intake(parkedrows.FromRows)
		if intake.Starts() && !begins.await(changed, f.closing) {
			select {
			case <-f.closing:
				return kept
			default:
				continue
			}
		}
		if ok := intake == parkedrows.IntakeOpen || probe; !ok {
			if probe, ok = f.breaker.start(msg, parkedrows.FromRows); !ok {
				return kept
			}
		}
		select {
		case out <- msg:
			return passedOn
		case <-changed:
		case <-f.closeTimeout:
			return late
		}
	}
}

// abandon releases a message without ack or nack, but only after Config.Lease, because its handler
// may still run.
func (f *fetcher) abandon(ctx context.Context, d *parkedrows.Delivery) {
	f.unanswered.Add(1)
	if !d.Claim.Settled() {
		f.release(ctx, d, f.config.Lease)
	}
	f.finished <- d.Claim
}

// settle updates the row of a message if the middleware has not updated it:
//
//   - If the message was handled and acked, the row is resolved. If the middleware is
//     not used, an ack means that the message was handled.
//   - If the message was handled but nacked, the messages that the handler produced may
//     be lost, so the message is tried again soon.
//   - If the message was not handled, it is tried again without end, with the longest
//     delay of the policy. This happens, for example, if the message was given up on,
//     but no poison middleware has quarantined it.
func (f *fetcher) settle(ctx context.Context, d *parkedrows.Delivery, acked bool) {
	claim := d.Claim
	switch {
	case claim.Settled():
	case acked && (claim.Handled() || !claim.Managed()):
		if f.stored.Handled != nil && claim.Replays == 0 {
			f.stored.Handled(claim.Age())
		}
		f.unremoved.Add(1)
		f.handled <- claim
		select {
		case f.freed <- struct{}{}:
		default:
		}
		return
	default:
		pause := f.longestPause()
		if claim.Handled() {
			pause = f.config.Policy.backoff().Jittered(1)
		}
		if d.ShuttingDown(ctx) { // release it, so that the next process can claim it immediately
			pause = 0
		}
		f.release(ctx, d, pause)
	}
	f.finished <- claim
}

func (f *fetcher) release(ctx context.Context, d *parkedrows.Delivery, pause time.Duration) {
	f.persist(ctx, d, "release the parked message", func(ctx context.Context) error {
		return f.store.Release(ctx, d.Claim, pause)
	})
}

// resolve removes the rows of handled messages in batches. If the process dies before, the messages
// are delivered again, and dedup skips them.
func (f *fetcher) resolve(ctx context.Context) {
	for claim := range f.handled {
		claims := f.collectHandled(claim)
		f.persist(ctx, f.delivery(nil), "resolve parked messages", func(ctx context.Context) error {
			return f.store.Resolve(ctx, claims...)
		})
		f.unremoved.Add(-int64(len(claims)))
		for _, claim := range claims {
			f.finished <- claim
		}
	}
}

// The row of a handled message may stay for linger, so that one statement removes many rows. If the
// next message of an ordering key, or of a tenant with a limit, waits for the removal, it may stay
// for shortLinger.
const (
	linger      = 50 * time.Millisecond
	shortLinger = 10 * time.Millisecond
)

// othersWait reports whether other messages may wait for the removal of a row.
func (f *fetcher) othersWait() bool { return f.config.KeyOrder != Unordered || f.stored.PerTenant > 0 }

// removedTogether is how many rows of handled messages one statement removes. Meanwhile, as many
// others may be claimed. If the process dies, all of them count a crash, and dedup skips the
// handled ones.
func (f *fetcher) removedTogether() int {
	switch {
	case f.stored.Ahead == 0:
		return 0
	case f.othersWait():
		return f.stored.Ahead / 4
	}
	return 100
}

// collectHandled returns claim, and others that are handled shortly after it. It waits for them
// only while the handlers have enough work: then no handler waits for the removal of this row.
func (f *fetcher) collectHandled(claim *parkedrows.Claim) []*parkedrows.Claim {
	claims := []*parkedrows.Claim{claim}
	wait := linger
	if f.othersWait() {
		wait = shortLinger
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	for waiting := true; waiting && len(claims) < f.removedTogether() && f.queue.len() > 0; {
		select {
		case next, ok := <-f.handled:
			if !ok {
				return claims
			}
			claims = append(claims, next)
		case <-timer.C:
			waiting = false
		}
	}
	for range len(f.handled) {
		claims = append(claims, <-f.handled)
	}
	return claims
}

func (f *fetcher) stop(ctx context.Context) {
	f.surplus = append(f.surplus, f.queue.clear()...)
	if f.config.Schema.Dialect != schema.SQLite {
		f.releaseSurplus(ctx)
	}
}

func (f *fetcher) releaseSurplus(ctx context.Context) {
	if len(f.surplus) == 0 {
		return
	}
	f.persist(ctx, f.delivery(nil), "hand back parked messages", func(ctx context.Context) error {
		return f.store.HandBack(ctx, f.surplus)
	})
	for _, claim := range f.surplus {
		f.remove(claim)
	}
	f.surplus = nil
}

// persist gives up after Config.UnackedWait. Then the messages are handled again when their leases
// have ended.
func (f *fetcher) persist(ctx context.Context, d *parkedrows.Delivery, what string, do func(ctx context.Context) error) {
	if err := f.patience.Persist(ctx, d, what, do); err != nil {
		f.config.Logger.Error("Parked messages are not settled, they are handled again after their lease", err,
			watermill.LogFields{"consumer": f.consumer, "topic": f.topic})
	}
}

func (f *fetcher) unrunnable(c parkedrows.Claimed) *chain.Error {
	why := &chain.Error{Kind: chain.Permanent, NotCalled: true, Attempts: c.Attempts}
	switch {
	case c.Err != nil:
		why.Reason, why.Err = chain.ReasonUndecodable, c.Err
	case c.Crashes > f.config.CrashBudget:
		why.Reason = chain.ReasonCrashed
		why.Err = fmt.Errorf("retry: the process ended %d times while the handler ran", c.Crashes-1)
	default:
		return nil
	}
	return why
}

// prepare returns the message of a claim for the handler. The context of an unrunnable message
// contains the reason, and the middlewares quarantine it. If prepare has settled the row, it
// returns false.
func (f *fetcher) prepare(ctx context.Context, c parkedrows.Claimed) (msg *message.Message, ok bool) {
	d := f.delivery(c.Claim)
	ctx = f.breaker.with(parkedrows.WithDelivery(ctx, d))
	why := f.unrunnable(c)
	if why == nil {
		c.Message.SetContext(ctx)
		return c.Message, true
	}
	if why.Reason == chain.ReasonCrashed && f.settleApplied(ctx, d, c) || !f.awaitMiddleware(ctx, d, why) {
		return nil, false
	}
	c.Manage() // otherwise an ack without a quarantine would resolve the row
	msg = withoutContent(c.Message)
	msg.SetContext(chain.WithUnrunnable(ctx, why))
	return msg, true
}

// withoutContent returns the id and the trace of msg. The content may have caused the crash, and
// middlewares outside of poison would read it. If the envelope is damaged, msg is nil.
func withoutContent(msg *message.Message) *message.Message {
	if msg == nil {
		return message.NewMessage("", nil)
	}
	empty := message.NewMessage(msg.UUID, nil)
	traced, _ := telemetry.Extract(context.Background(), msg.Metadata)
	telemetry.Inject(traced, empty.Metadata)
	return empty
}

// settleApplied is called for a message whose crash budget is used up. It settles the row if the
// inbox contains the message: the process died after the commit. It releases the row if the inbox
// cannot be searched.
func (f *fetcher) settleApplied(ctx context.Context, d *parkedrows.Delivery, c parkedrows.Claimed) (settled bool) {
	ctx, cancel := f.withLeaseTimeout(ctx)
	defer cancel()
	applied, err := f.store.Applied(ctx, c)
	if err == nil && applied {
		err = f.store.Resolve(ctx, c.Claim)
	}
	named := meta.LogFields(c.Message.UUID, c.Message.Metadata, watermill.LogFields{"consumer": f.consumer, "topic": f.topic, "entry": c.ID})
	switch {
	case err != nil:
		f.config.Logger.Error("Inbox cannot be asked about a crashed message, retrying", err, named)
		if !errors.Is(err, parkedrows.ErrClaimLost) {
			f.release(ctx, d, lookAgain)
		}
	case applied:
		f.config.Logger.Info("Parked message was already handled before its process died", named)
	}
	return err != nil || applied
}

// middlewareWait is how long an unrunnable message waits for the router to call the middleware,
// because the router calls Subscribe first.
const middlewareWait = time.Second

// awaitMiddleware returns true as soon as the middleware is used. Without it, an unrunnable message
// would reach the handler, so after middlewareWait the row is released.
func (f *fetcher) awaitMiddleware(ctx context.Context, d *parkedrows.Delivery, why error) (used bool) {
	wait := time.NewTimer(middlewareWait)
	defer wait.Stop()
	select {
	case <-f.used:
		return true
	case <-d.Closing:
		f.release(ctx, d, 0)
	case <-wait.C:
		logNoQuarantine(f.config.Logger, d, "", why)
		f.release(ctx, d, f.longestPause())
	}
	return false
}

// longestPause is for a message that was given up on but could not be quarantined.
func (f *fetcher) longestPause() time.Duration {
	return f.config.Policy.backoff().Jittered(max(1, f.config.Policy.Delayed))
}

func logNoQuarantine(logger watermill.LoggerAdapter, d *parkedrows.Delivery, uuid string, why error) {
	logger.Error("Parked message cannot be quarantined: the chain needs poison's middleware, and retry's inside of it; the row is kept", why,
		watermill.LogFields{"consumer": d.Consumer, "topic": d.Topic, "entry": d.Claim.ID, "message_uuid": uuid})
}
