package retry

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"

	"github.com/watermill-once/once/internal/parked"
	"github.com/watermill-once/once/internal/verdict"
)

// feed brings the parked messages of one subscription. One goroutine claims
// them and renews the leases; one more per message in hand waits for its ack.
type feed struct {
	*Retries

	consumer string
	topic    string
	owner    string
	closing  <-chan struct{}
	wake     chan struct{}
	done     chan *parked.Claim
	inHand   map[*parked.Claim]struct{}
	asking   bool // for suspects to run alone
	failing  bool
}

func newFeed(r *Retries, consumer, topic string, closing <-chan struct{}) *feed {
	host, _ := os.Hostname()
	return &feed{
		Retries:  r,
		consumer: consumer,
		topic:    topic,
		owner:    fmt.Sprintf("%s/%d/%s", host, os.Getpid(), uuid.NewString()[:8]),
		closing:  closing,
		wake:     make(chan struct{}, 1),
		done:     make(chan *parked.Claim),
		inHand:   map[*parked.Claim]struct{}{},
	}
}

func (f *feed) wakeUp() {
	select {
	case f.wake <- struct{}{}:
	default:
	}
}

// forward passes the transport's messages on, with the consumer's name.
func (f *feed) forward(in <-chan *message.Message, out chan<- *message.Message) {
	for msg := range in {
		msg.SetContext(parked.WithDelivery(msg.Context(), f.delivery(nil)))
		out <- msg
	}
}

func (f *feed) delivery(claim *parked.Claim) *parked.Delivery {
	return &parked.Delivery{Consumer: f.consumer, Topic: f.topic, Subscribed: true, Claim: claim, Closing: f.closing}
}

// run fetches until closing, then waits for what is in hand.
func (f *feed) run(ctx context.Context, out chan<- *message.Message) {
	// What is claimed is handled to its end: closing ends the fetching, not
	// the handlers.
	ctx = context.WithoutCancel(ctx)
	poll := time.NewTicker(f.config.PollInterval)
	defer poll.Stop()
	renew := time.NewTicker(f.config.Lease / 3)
	defer renew.Stop()
	defer f.ask(false)

	closing := f.closing
	more := true
	for closing != nil || len(f.inHand) > 0 {
		select { // first: what is handed back now must not be fetched again
		case <-closing:
			closing = nil
		default:
		}
		if more && closing != nil {
			more = f.fetch(ctx, out)
			if more {
				continue
			}
		}
		select {
		case <-closing:
			closing = nil
		case claim := <-f.done:
			delete(f.inHand, claim)
			inProcess.leave(1)
			more = true
		case <-f.wake:
			more = true
		case <-poll.C:
			more = true
		case <-renew.C:
			f.renew(ctx)
		}
	}
}

// fetch claims what is due, as far as there is room, and says whether to look
// again at once.
func (f *feed) fetch(ctx context.Context, out chan<- *message.Message) (again bool) {
	room := f.config.Concurrency - len(f.inHand)
	if room <= 0 {
		return false
	}
	sel := parked.Select{Consumer: f.consumer, Topic: f.topic, Owner: f.owner, Limit: room, Lease: f.config.Lease}
	fresh, suspect, err := f.store.Due(ctx, sel)
	f.ask(suspect)
	switch {
	case err != nil:
		f.report(err)
		return false
	case suspect:
		// A message under which a process has ended runs alone, so that the
		// next crash has one author.
		sel.Suspects, sel.Limit = true, 1
		if !inProcess.isolate() {
			return false
		}
	case !fresh:
		f.report(nil)
		return false
	case !inProcess.join(room):
		return false
	}
	before := len(f.inHand)
	claimed, err := f.store.Claim(ctx, sel)
	f.report(err)
	for _, c := range claimed {
		f.hand(ctx, c, out)
	}
	inProcess.leave(sel.Limit - (len(f.inHand) - before))
	return err == nil && len(claimed) == room && !sel.Suspects
}

// ask has the rest of the process make room for a suspect, or no longer.
func (f *feed) ask(suspect bool) {
	switch {
	case suspect && !f.asking:
		inProcess.ask(f.wakeUp)
	case !suspect && f.asking:
		inProcess.withdraw()
	}
	f.asking = suspect
}

// hand delivers a claimed message, or quarantines it at once if it must not be
// run.
func (f *feed) hand(ctx context.Context, c parked.Claimed, out chan<- *message.Message) {
	d := f.delivery(c.Claim)
	if c.Crashes > 1 {
		f.instruments.crashes.Add(1, 0)
	}
	switch {
	case c.Err != nil:
		f.quarantine(ctx, d, verdict.ReasonUndecodable, c.Err)
		return
	case c.Crashes > f.config.CrashBudget:
		f.quarantine(ctx, d, verdict.ReasonCrashed,
			fmt.Errorf("retry: the process ended %d times while the handler ran", c.Crashes-1))
		return
	}
	msgCtx, cancel := context.WithCancel(parked.WithDelivery(ctx, d))
	msg := c.Message
	msg.SetContext(msgCtx)
	f.inHand[c.Claim] = struct{}{}
	out <- msg
	go func() {
		defer cancel()
		select {
		case <-msg.Acked():
			f.settle(msgCtx, d, true)
		case <-msg.Nacked():
			f.settle(msgCtx, d, false)
		}
		f.done <- c.Claim
	}()
}

// settle moves a row on that no middleware has moved. Where none is there to
// do so, an ack does mean done. Otherwise the message was given up with no
// poison to take it: it is tried again at the policy's longest delay, for ever.
func (f *feed) settle(ctx context.Context, d *parked.Delivery, acked bool) {
	if d.Claim.Settled() {
		return
	}
	err := f.patience.Persist(ctx, d, "settle the parked message", func(ctx context.Context) error {
		if acked && !d.Claim.Managed() {
			return f.store.Resolve(ctx, d.Claim)
		}
		return f.store.Release(ctx, d.Claim, f.config.Policy.jittered(max(1, f.config.Policy.Delayed)))
	})
	if err != nil {
		f.config.Logger.Error("Parked message is not settled; it is handled again when its lease is over", err,
			watermill.LogFields{"consumer": f.consumer, "topic": f.topic})
	}
}

func (f *feed) quarantine(ctx context.Context, d *parked.Delivery, reason string, why error) {
	failure := parked.Failure{Err: why, Reason: reason, Attempts: d.Claim.Attempts}
	err := f.store.QuarantineClaim(ctx, f.consumer, d.Claim, failure)
	fields := watermill.LogFields{"consumer": f.consumer, "topic": f.topic, "row": d.Claim.ID, "reason": reason}
	if err != nil {
		f.config.Logger.Error("Cannot quarantine the parked message", err, fields)
		return
	}
	f.instruments.quarantined(reason)
	f.config.Logger.Error("Parked message is quarantined without being run", why, fields)
}

func (f *feed) renew(ctx context.Context) {
	claims := make([]*parked.Claim, 0, len(f.inHand))
	for claim := range f.inHand {
		claims = append(claims, claim)
	}
	if err := f.store.Extend(ctx, f.config.Lease, claims); err != nil {
		f.report(err)
	}
}

// report logs when fetching starts to fail, and when it works again.
func (f *feed) report(err error) {
	fields := watermill.LogFields{"consumer": f.consumer, "topic": f.topic}
	switch {
	case err != nil && errors.Is(err, context.Canceled):
	case err != nil && !f.failing:
		f.failing = true
		f.config.Logger.Error("Cannot fetch parked messages, trying on", err, fields)
	case err == nil && f.failing:
		f.failing = false
		f.config.Logger.Info("Parked messages are fetched again", fields)
	}
}
