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

// begin gets ready to hand out, to as many handlers as there may be. end is for
// when nothing is in hand any more.
func (f *feed) begin(ctx context.Context, out chan<- *message.Message) (end func()) {
	f.claimed = newLine(f.closing)
	f.handled = make(chan *parked.Claim, f.capacity())
	f.done = make(chan *parked.Claim, f.capacity())
	var working, resolving sync.WaitGroup
	for range f.config.Concurrency {
		working.Go(func() {
			for c, ok := f.claimed.next(); ok; c, ok = f.claimed.next() {
				f.deliver(ctx, c, out)
			}
		})
	}
	resolving.Go(func() { f.resolve(ctx) })
	return func() {
		f.claimed.close()
		working.Wait()
		close(f.handled)
		resolving.Wait()
	}
}

// deliver hands a message out and waits for its answer.
func (f *feed) deliver(ctx context.Context, c parked.Claimed, out chan<- *message.Message) {
	d := f.delivery(c.Claim)
	ctx, cancel := context.WithCancel(parked.WithDelivery(ctx, d))
	defer cancel()
	msg := c.Message
	msg.SetContext(ctx)
	failpoint.Hit("retry/hand-out")
	select {
	case out <- msg:
	case <-f.over:
		f.giveBack(ctx, d)
		return
	}
	select {
	case <-msg.Acked():
		f.settle(ctx, d, true)
	case <-msg.Nacked():
		f.settle(ctx, d, false)
	case <-f.over:
		f.giveBack(ctx, d)
	}
}

// giveBack lets go of a message that was not answered. Its handler may still be
// at work, so it is left alone for a while.
func (f *feed) giveBack(ctx context.Context, d *parked.Delivery) {
	f.givenBack.Add(1)
	if !d.Claim.Settled() {
		f.release(ctx, d, f.config.Lease)
	}
	f.done <- d.Claim
}

// settle moves a row on that no middleware has moved. Where none is there to
// do so, an ack does mean done. A nack never does: what the handler produced may
// be lost, and it is called again soon. Otherwise the message was given up with
// no poison to take it: it is tried again at the policy's longest delay, for
// ever.
func (f *feed) settle(ctx context.Context, d *parked.Delivery, acked bool) {
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
		round := max(1, f.config.Policy.Delayed)
		if claim.Handled() {
			round = 1
		}
		pause := f.config.Policy.jittered(round)
		if d.ShuttingDown(ctx) { // it is for whoever comes after
			pause = 0
		}
		f.release(ctx, d, pause)
	}
	f.done <- claim
}

func (f *feed) release(ctx context.Context, d *parked.Delivery, pause time.Duration) {
	f.persist(ctx, d, "release the parked message", func(ctx context.Context) error {
		return f.store.Release(ctx, d.Claim, pause)
	})
}

// resolve ends the rows of messages that were handled, several at a time. If
// the process dies first, they are handled again, and dedup knows them.
func (f *feed) resolve(ctx context.Context) {
	for claim := range f.handled {
		claims := f.together(claim)
		f.persist(ctx, f.delivery(nil), "resolve parked messages", func(ctx context.Context) error {
			return f.store.Resolve(ctx, claims...)
		})
		for _, claim := range claims {
			f.done <- claim
		}
	}
}

// linger is how long a message that was handled waits for others, while there
// is more to hand out.
const linger = 10 * time.Millisecond

// together collects what was handled with claim. While the handlers have enough
// to do nobody waits for the end of a row, and a transaction is better used by
// many.
func (f *feed) together(claim *parked.Claim) []*parked.Claim {
	claims := []*parked.Claim{claim}
	enough := time.NewTimer(linger)
	defer enough.Stop()
	for waiting := true; waiting && len(claims) <= f.stored.Ahead/4 && f.claimed.len() > 0; {
		select {
		case next, ok := <-f.handled:
			if !ok {
				return claims
			}
			claims = append(claims, next)
		case <-enough.C:
			waiting = false
		}
	}
	for range len(f.handled) {
		claims = append(claims, <-f.handled)
	}
	return claims
}

// stop has no more messages handed out, and gives back those that are claimed.
// With SQLite a handler has the only writer, so that has to wait.
func (f *feed) stop(ctx context.Context) {
	f.surplus = append(f.surplus, f.claimed.clear()...)
	if f.config.Schema.Dialect != schema.SQLite {
		f.handBack(ctx)
	}
}

func (f *feed) handBack(ctx context.Context) {
	if len(f.surplus) == 0 {
		return
	}
	f.persist(ctx, f.delivery(nil), "hand back parked messages", func(ctx context.Context) error {
		return f.store.HandBack(ctx, f.surplus)
	})
	for _, claim := range f.surplus {
		f.leave(claim)
	}
	f.surplus = nil
}

// persist keeps at it for as long as patience has it.
func (f *feed) persist(ctx context.Context, d *parked.Delivery, what string, do func(ctx context.Context) error) {
	if err := f.patience.Persist(ctx, d, what, do); err != nil {
		f.config.Logger.Error("Parked messages are not settled; they are handled again when their lease is over", err,
			watermill.LogFields{"consumer": f.consumer, "topic": f.topic})
	}
}
