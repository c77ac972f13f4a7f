package retry

import (
	"context"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/internal/failpoint"
	"github.com/watermill-once/once/internal/parked"
	"github.com/watermill-once/once/schema"
)

// startHandingOut starts two kinds of goroutines: those that pass messages to the
// handlers, and one that resolves the rows of handled messages. The returned function
// end ends these goroutines. It must be called when no message is in flight.
func (f *fetcher) startHandingOut(ctx context.Context, out chan<- *message.Message) (end func()) {
	f.queue = newFairQueue(f.closing)
	f.handled = make(chan *parked.Claim, f.capacity())
	f.finished = make(chan *parked.Claim, f.capacity())
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

// deliver passes a message to a handler and waits for its ack or nack.
func (f *fetcher) deliver(ctx context.Context, c parked.Claimed, out chan<- *message.Message) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	msg, ok := f.prepare(ctx, c)
	if !ok {
		f.finished <- c.Claim
		return
	}
	d := parked.DeliveryOf(msg.Context())
	failpoint.Hit("retry/hand-out")
	select {
	case out <- msg:
	case <-f.closeTimeout:
		f.abandon(ctx, d)
		return
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

// abandon releases a message that was neither acked nor nacked. The message is due
// again only after Config.Lease, because its handler may still be running.
func (f *fetcher) abandon(ctx context.Context, d *parked.Delivery) {
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
func (f *fetcher) settle(ctx context.Context, d *parked.Delivery, acked bool) {
	claim := d.Claim
	switch {
	case claim.Settled():
	case acked && (claim.Handled() || !claim.Managed()):
		if f.stored.Handled != nil && claim.Replays == 0 {
			f.stored.Handled(claim.Age())
		}
		f.handled <- claim
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

func (f *fetcher) release(ctx context.Context, d *parked.Delivery, pause time.Duration) {
	f.persist(ctx, d, "release the parked message", func(ctx context.Context) error {
		return f.store.Release(ctx, d.Claim, pause)
	})
}

// resolve removes the rows of handled messages, several rows in each transaction. If
// the process dies before the removal, the messages are delivered again, and dedup
// skips them.
func (f *fetcher) resolve(ctx context.Context) {
	for claim := range f.handled {
		claims := f.collectHandled(claim)
		f.persist(ctx, f.delivery(nil), "resolve parked messages", func(ctx context.Context) error {
			return f.store.Resolve(ctx, claims...)
		})
		for _, claim := range claims {
			f.finished <- claim
		}
	}
}

// linger is how long the row of a handled message stays in the table so that it can be
// removed together with other rows. It applies only while the queue contains more
// messages.
const linger = 10 * time.Millisecond

// collectHandled returns claim, and other claims that are handled shortly after it. It
// waits for other claims only while the handlers have enough work. In that case, no
// handler waits for the removal of this row, and removing many rows in one transaction
// costs less.
func (f *fetcher) collectHandled(claim *parked.Claim) []*parked.Claim {
	claims := []*parked.Claim{claim}
	timer := time.NewTimer(linger)
	defer timer.Stop()
	for waiting := true; waiting && len(claims) <= f.stored.Ahead/4 && f.queue.len() > 0; {
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

// stop ends the delivery of messages, and releases the queued messages. With SQLite, it
// does not release them yet, because a running handler uses the only writer.
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

// persist calls the function do until it succeeds or Config.UnackedWait has passed. If
// the function never succeeds, the messages are handled again when their leases have
// ended.
func (f *fetcher) persist(ctx context.Context, d *parked.Delivery, what string, do func(ctx context.Context) error) {
	if err := f.patience.Persist(ctx, d, what, do); err != nil {
		f.config.Logger.Error("Parked messages are not settled, they are handled again after their lease", err,
			watermill.LogFields{"consumer": f.consumer, "topic": f.topic})
	}
}
