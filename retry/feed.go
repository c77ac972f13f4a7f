package retry

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"

	"github.com/watermill-once/once/internal/adaptive"
	"github.com/watermill-once/once/internal/disposition"
	"github.com/watermill-once/once/internal/failpoint"
	"github.com/watermill-once/once/internal/parked"
	"github.com/watermill-once/once/internal/telemetry"
)

// feed brings the parked messages of one subscription. One goroutine claims
// them and renews the leases, one resolves what was handled, and as many as
// there are messages handled at once hand them out and wait for their acks.
type feed struct {
	*Retries

	consumer string
	topic    string
	owner    string
	closing  <-chan struct{}
	wake     chan struct{}
	use      *parked.Use
	stored   parked.Stored // what the transport wants, if it stores all messages

	over      <-chan struct{} // closed when answers are no longer waited for
	givenBack *atomic.Int64   // messages without an answer

	turns   parked.Turns
	portion adaptive.Limit // of what there is room for, claimed at once
	due     *parked.Due    // what the last look has found, while that will do
	looked  time.Time
	buffer  buffer
	claimed *line              // to be handed out
	handled chan *parked.Claim // this and the next have room for all in hand
	done    chan *parked.Claim
	inHand  map[*parked.Claim]struct{}
	surplus []*parked.Claim // in hand, and not to be handed out
	unknown []*parked.Claim // may be claimed, and are to be handed back

	more    bool      // may be due than was claimed
	asking  bool      // for crashed to run alone
	missed  time.Time // when one was due, and could not be claimed
	failing bool

	seen   bool   // the database was told that the consumer runs
	unseen bool   // it could not be told so
	twin   string // another handler under the consumer's name that was logged
}

// headsAhead is how many messages whose order is kept are claimed for each
// handler, beyond the one that it is at. Each that is finished makes room for
// one of its key: so several are fetched at a time.
const headsAhead = 4

func newFeed(s *subscriber, topic string, closing <-chan struct{}) *feed {
	host, _ := os.Hostname()
	ahead := 0
	if s.retries.config.KeyOrder != Unordered {
		ahead = headsAhead * s.retries.config.Concurrency
	}
	return &feed{
		Retries:   s.retries,
		consumer:  s.consumer,
		topic:     topic,
		owner:     fmt.Sprintf("%s/%d/%s", host, os.Getpid(), uuid.NewString()[:8]),
		closing:   closing,
		over:      s.over,
		givenBack: &s.givenBack,
		wake:      make(chan struct{}, 1),
		inHand:    map[*parked.Claim]struct{}{},
		stored:    parked.Stored{Ahead: ahead},
		buffer:    buffer{most: s.retries.config.BufferBytes},
	}
}

// capacity is how many rows may be in hand.
func (f *feed) capacity() int { return f.config.Concurrency + f.stored.Ahead }

func (f *feed) wakeUp() {
	select {
	case f.wake <- struct{}{}:
	default:
	}
}

func (f *feed) subscription() parked.Subscription {
	return parked.Subscription{
		Consumer: f.consumer,
		KeyOrder: f.config.KeyOrder != Unordered,
		Owner:    f.owner,
		Wake:     f.wakeUp,
		Store:    func(stored parked.Stored) { f.stored = stored },
	}
}

func (f *feed) delivery(claim *parked.Claim) *parked.Delivery {
	return &parked.Delivery{
		Consumer: f.consumer, Topic: f.topic, Subscribed: true, Use: f.use, Claim: claim, Closing: f.closing, Wake: f.wakeUp,
	}
}

// run fetches until closing, then waits for what is handed out.
func (f *feed) run(ctx context.Context, out chan<- *message.Message) {
	// What is handed out is handled to its end: closing ends the fetching, not
	// the handlers.
	ctx = context.WithoutCancel(ctx)
	defer f.begin(ctx, out)()
	poll := time.NewTicker(f.config.PollInterval)
	defer poll.Stop()
	tidy := time.NewTicker(f.config.Lease)
	defer tidy.Stop()
	renew := time.NewTicker(f.config.Lease / 3)
	defer renew.Stop()
	seen := time.NewTimer(0)
	defer seen.Stop()
	defer f.ask(false)

	closing := f.closing
	again := true
	for closing != nil || len(f.inHand) > len(f.surplus) {
		select { // first: what is handed back now must not be fetched again
		case <-closing:
			closing = nil
			f.stop(ctx)
		default:
		}
		if again && closing != nil {
			again = f.fetch(ctx)
			if again {
				continue
			}
		}
		select {
		case <-closing:
			closing = nil
			f.stop(ctx)
		case claim := <-f.done:
			again = f.finished(claim) || f.more
		case <-f.wake:
			f.due, again = nil, true
		case <-poll.C:
			f.due, again = nil, true
		case <-renew.C:
			f.renew(ctx)
		case <-tidy.C:
			f.tidy(ctx)
		case <-seen.C:
			seen.Reset(f.see(ctx))
		}
	}
	f.handBack(ctx)
}

// finished takes a claim out of hand, and all others that are finished by now:
// fetching takes as long for one as for all of them. It reports whether one of
// them may have made room for the next of its ordering key.
func (f *feed) finished(claim *parked.Claim) (next bool) {
	for {
		next = next || claim.Key != parked.Key{}
		f.leave(claim)
		select {
		case claim = <-f.done:
		default:
			return next
		}
	}
}

// briefly bounds what waits for the database: longer than a lease it is of no
// use, and Close waits for it.
func (f *feed) briefly(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, f.config.Lease)
}

// fetch claims what is due, as far as there is room, and says whether to look
// again at once.
func (f *feed) fetch(ctx context.Context) (again bool) {
	ctx, cancel := f.briefly(ctx)
	defer cancel()
	f.more = true
	room := f.capacity() - len(f.inHand)
	if many := f.stored.Ahead / 2; room <= 0 || room < many || f.claimed.len() > many {
		return false // until one statement can claim many
	}
	if err := f.disown(ctx); err != nil {
		f.report(ctx, err)
		return false
	}
	rows := f.portion.Of(room)
	if room = f.buffer.fit(rows); room == 0 {
		return false
	}
	sel := parked.Select{
		Consumer: f.consumer, Topic: f.topic, Owner: f.owner, Limit: room, Bytes: f.buffer.free(), Lease: f.config.Lease,
		Order: parked.KeyOrder(f.config.KeyOrder), Keep: f.stored.Keep, Turns: &f.turns,
	}
	due, used, err := f.look(ctx, sel)
	if err != nil {
		f.ask(false)
		f.report(ctx, err)
		return false
	}
	sel.Due = due
	due.Suspect = due.Suspect && time.Since(f.missed) >= lookAgain
	f.ask(due.Suspect)
	switch {
	case due.Suspect && inProcess.isolate():
		// A message under which a process has ended runs alone, so that the
		// next crash has one author.
		sel.Crashed, sel.Limit = true, 1
	case !due.Fresh():
		if time.Since(f.missed) >= lookAgain { // else it is not known yet
			f.report(ctx, nil)
		}
		f.more = due.Suspect
		return false
	case !inProcess.join(room):
		return false
	}
	before, partly := len(f.inHand), due.Partly()
	asked := time.Now()
	claimed, err := f.store.Claim(ctx, sel)
	if f.buffer.refused(err) {
		inProcess.leave(sel.Limit)
		return true // for fewer
	}
	// The lease begins before a claim, and all others are to be renewed after it.
	f.portion.Did(err == nil && time.Since(asked) < f.config.Lease/3)
	f.report(ctx, err)
	f.take(ctx, claimed, err)
	missed := sel.Crashed && len(claimed) == 0
	if missed { // others are not to make room for what somebody else has locked
		f.missed = time.Now()
		f.ask(false)
	}
	inProcess.leave(sel.Limit - (len(f.inHand) - before))
	if missed {
		return err == nil
	}
	// Of large ones there may be none for the last tenants, who are the first that
	// the next look finds.
	if err == nil && len(claimed) == rows && !partly && !sel.Crashed {
		f.due = due
	}
	// A look that was used again does not know who has come since.
	f.more = err != nil || len(claimed) == sel.Limit || partly || used
	// Where others have locked all that is due the next look finds the same, and
	// leases are to be renewed meanwhile.
	return err == nil && (len(claimed) == room || partly && len(claimed) > 0 || used) && !sel.Crashed
}

// take has what was claimed handed out. With an error it may be, and is not.
func (f *feed) take(ctx context.Context, claimed []parked.Claimed, err error) {
	f.buffer.claimed(claimed)
	for _, c := range claimed {
		if err != nil {
			f.unknown = append(f.unknown, c.Claim)
		} else {
			f.hand(ctx, c)
		}
	}
}

// disown hands back what may have been claimed by a commit of unknown outcome.
// What was not, or is claimed anew by now, stays as it is.
func (f *feed) disown(ctx context.Context) error {
	if len(f.unknown) == 0 {
		return nil
	}
	if err := f.store.HandBack(ctx, f.unknown); err != nil && !errors.Is(err, parked.ErrClaimLost) {
		return err
	}
	f.unknown = nil
	return nil
}

// lookLasts is how long a look will do, while all that it has found have more.
// What this process stores meanwhile has it look at once.
const lookLasts = 50 * time.Millisecond

// look finds out what is due, and for whom, or used what it found a moment ago.
func (f *feed) look(ctx context.Context, sel parked.Select) (due *parked.Due, used bool, err error) {
	due, f.due = f.due, nil
	if due != nil && time.Since(f.looked) < lookLasts {
		return due, true, nil
	}
	f.looked = time.Now()
	due, err = f.store.Due(ctx, sel)
	return due, false, err
}

func (f *feed) leave(claim *parked.Claim) {
	delete(f.inHand, claim)
	f.buffer.bytes -= claim.Size
	inProcess.leave(1)
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

// hand has a claimed message handed out, or quarantines it at once if it must
// not be run.
func (f *feed) hand(ctx context.Context, c parked.Claimed) {
	if c.Crashes > 1 {
		f.instruments.crashes.Add(1, 0)
	}
	switch {
	case c.Err != nil:
		f.quarantine(ctx, f.delivery(c.Claim), c.Message, disposition.ReasonUndecodable, c.Err)
		return
	case c.Crashes > f.config.CrashBudget:
		f.giveUp(ctx, c)
		return
	}
	f.inHand[c.Claim] = struct{}{}
	f.buffer.bytes += c.Size
	f.claimed.add(c)
}

// lookAgain is when, if it is not known whether a message was handled, or if a
// suspect is due that cannot be claimed.
const lookAgain = time.Second

// giveUp quarantines a message whose crash budget is used up. One that the inbox
// has is done: its processes ended after the commit.
func (f *feed) giveUp(ctx context.Context, c parked.Claimed) {
	applied, err := f.store.Applied(ctx, c)
	if err == nil && applied {
		err = f.store.Resolve(ctx, c.Claim)
	}
	fields := watermill.LogFields{"consumer": f.consumer, "topic": f.topic, "entry": c.ID, "message_uuid": c.Message.UUID}
	switch {
	case err != nil:
		err = errors.Join(err, f.store.Release(ctx, c.Claim, lookAgain))
		f.config.Logger.Error("Cannot tell yet what became of the parked message", err, fields)
	case applied:
		f.config.Logger.Info("Parked message had been handled when its process ended", fields)
	default:
		f.quarantine(ctx, f.delivery(c.Claim), c.Message, disposition.ReasonCrashed,
			fmt.Errorf("retry: the process ended %d times while the handler ran", c.Crashes-1))
	}
}

func (f *feed) quarantine(ctx context.Context, d *parked.Delivery, msg *message.Message, reason string, why error) {
	failure := parked.Failure{Err: why, Reason: reason, Attempts: d.Claim.Attempts}
	ctx, end := f.instruments.tracer.Quarantine(ctx, f.instruments.traced(), f.consumer, f.topic, reason, msg)
	failpoint.Hit("retry/quarantine-claim")
	err := f.store.QuarantineClaim(ctx, f.consumer, d.Claim, failure)
	end(telemetry.Stored, err)
	fields := watermill.LogFields{"consumer": f.consumer, "topic": f.topic, "entry": d.Claim.ID, "reason": reason}
	if msg != nil { // else the stored envelope is damaged
		fields["message_uuid"] = msg.UUID
	}
	if err != nil {
		f.config.Logger.Error("Cannot quarantine the parked message", err, fields)
		return
	}
	f.instruments.quarantined(reason)
	f.config.Logger.Error("Parked message is quarantined without being run", why, fields)
}

func (f *feed) renew(ctx context.Context) {
	ctx, cancel := f.briefly(ctx)
	defer cancel()
	claims := make([]*parked.Claim, 0, len(f.inHand))
	for claim := range f.inHand {
		claims = append(claims, claim)
	}
	if err := f.store.Extend(ctx, f.config.Lease, claims); err != nil {
		f.report(ctx, err)
	}
}

// report logs when fetching starts to fail, and when it works again, but for the
// end of ctx.
func (f *feed) report(ctx context.Context, err error) {
	fields := watermill.LogFields{"consumer": f.consumer, "topic": f.topic}
	switch {
	case err != nil && errors.Is(ctx.Err(), context.Canceled): // whatever the driver calls it
	case err != nil && !f.failing:
		f.failing = true
		f.config.Logger.Error("Cannot fetch parked messages, trying on", err, fields)
	case err == nil && f.failing:
		f.failing = false
		f.config.Logger.Info("Parked messages are fetched again", fields)
	}
}
