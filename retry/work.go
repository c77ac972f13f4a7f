package retry

import (
	"context"
	"sync"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/internal/failpoint"
	"github.com/watermill-once/once/internal/parked"
	"github.com/watermill-once/once/schema"
)

// begin gets ready to hand out, to as many handlers as there may be. end is for
// when nothing is in hand any more.
func (f *feed) begin(ctx context.Context, out chan<- *message.Message) (end func()) {
	f.claimed = newLine()
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
		f.persist(ctx, d, "give back the parked message", func(ctx context.Context) error {
			return f.store.Release(ctx, d.Claim, f.config.Lease)
		})
	}
	f.done <- d.Claim
}

// settle moves a row on that no middleware has moved. Where none is there to
// do so, an ack does mean done. Otherwise the message was given up with no
// poison to take it: it is tried again at the policy's longest delay, for ever.
func (f *feed) settle(ctx context.Context, d *parked.Delivery, acked bool) {
	claim := d.Claim
	switch {
	case claim.Settled():
	case claim.Handled(), acked && !claim.Managed():
		if f.stored.Handled != nil && claim.Replays == 0 {
			f.stored.Handled(claim.Age())
		}
		f.handled <- claim
		return
	default:
		f.persist(ctx, d, "release the parked message", func(ctx context.Context) error {
			return f.store.Release(ctx, claim, f.config.Policy.jittered(max(1, f.config.Policy.Delayed)))
		})
	}
	f.done <- claim
}

// resolve ends the rows of messages that were handled: all that came together
// while it was at those before. If the process dies first, they are handled
// again, and dedup knows them.
func (f *feed) resolve(ctx context.Context) {
	for claim := range f.handled {
		claims := []*parked.Claim{claim}
		for range len(f.handled) {
			claims = append(claims, <-f.handled)
		}
		f.persist(ctx, f.delivery(nil), "resolve parked messages", func(ctx context.Context) error {
			return f.store.Resolve(ctx, claims...)
		})
		for _, claim := range claims {
			f.done <- claim
		}
	}
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
