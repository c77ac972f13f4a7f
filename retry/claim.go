package retry

import (
	"context"
	"errors"
	"time"

	"github.com/watermill-once/once/internal/disposition"
	"github.com/watermill-once/once/internal/parked"
)

const (
	// reuseDue is how long the result of a look at the table may be used again,
	// while every tenant that it found has more rows. A message that this process
	// stores meanwhile causes a new look at once.
	reuseDue = 50 * time.Millisecond

	// lookAgain is the pause after a failure to find out whether a message was
	// handled, and after a failure to claim a crashed message.
	lookAgain = time.Second
)

// fetch claims due rows, as many as there is room for. It reports whether to
// fetch again at once.
func (f *fetcher) fetch(ctx context.Context) (again bool) {
	ctx, cancel := f.withLeaseTimeout(ctx)
	defer cancel()
	f.moreDue = true
	room := f.capacity() - len(f.inFlight)
	if many := f.stored.Ahead / 2; room <= 0 || room < many || f.queue.len() > many {
		return false // wait until one statement can claim many rows
	}
	if err := f.releaseUnknown(ctx); err != nil {
		f.report(ctx, err)
		return false
	}
	rows := f.limit.Of(room)
	if room = f.buffer.fit(rows); room == 0 {
		return false
	}
	sel := parked.Select{
		Consumer: f.consumer, Topic: f.topic, Owner: f.owner, Limit: room, Bytes: f.buffer.free(), Lease: f.config.Lease,
		Order: parked.KeyOrder(f.config.KeyOrder), Keep: f.stored.Keep, Turns: &f.turns,
	}
	due, reused, err := f.findDue(ctx, sel)
	if err != nil {
		f.requestIsolation(false)
		f.report(ctx, err)
		return false
	}
	sel.Due = due
	due.Crashed = due.Crashed && time.Since(f.missedCrash) >= lookAgain
	f.requestIsolation(due.Crashed)
	switch {
	case due.Crashed && processGate.enterAlone():
		// Alone, so that the next crash can be attributed to this message.
		sel.Crashed, sel.Limit = true, 1
	case !due.Fresh():
		if time.Since(f.missedCrash) >= lookAgain { // before that a recovery is not certain
			f.report(ctx, nil)
		}
		f.moreDue = due.Crashed
		return false
	case !processGate.enter(room):
		return false
	}
	before, partly := len(f.inFlight), due.Partial()
	began := time.Now()
	claimed, err := f.store.Claim(ctx, sel)
	if f.buffer.tooLarge(err) {
		processGate.leave(sel.Limit)
		return true
	}
	// A lease begins with its claim, and all other leases must be renewed after
	// it, so a slow claim counts as a failure.
	f.limit.Did(err == nil && time.Since(began) < f.config.Lease/3)
	f.report(ctx, err)
	f.accept(ctx, claimed, err)
	missed := sel.Crashed && len(claimed) == 0
	if missed { // another process has locked it: this process need not make room
		f.missedCrash = time.Now()
		f.requestIsolation(false)
	}
	processGate.leave(sel.Limit - (len(f.inFlight) - before))
	if missed {
		return err == nil
	}
	// If the bytes limited the claim, the last tenants may have got nothing: a new
	// look finds them first.
	if err == nil && len(claimed) == rows && !partly && !sel.Crashed {
		f.due = due
	}
	// A reused look does not know the tenants that have arrived since.
	f.moreDue = err != nil || len(claimed) == sel.Limit || partly || reused
	// If other processes have locked all due rows, the next look finds the same
	// rows; the loop must renew leases in between.
	return err == nil && (len(claimed) == room || partly && len(claimed) > 0 || reused) && !sel.Crashed
}

// accept queues claimed messages. With an error the commit may have happened:
// the claims are released later.
func (f *fetcher) accept(ctx context.Context, claimed []parked.Claimed, err error) {
	f.buffer.observe(claimed)
	for _, c := range claimed {
		if err != nil {
			f.unknown = append(f.unknown, c.Claim)
		} else {
			f.enqueue(ctx, c)
		}
	}
}

// enqueue queues a claimed message for a handler. It quarantines the message
// instead if no handler may run it.
func (f *fetcher) enqueue(ctx context.Context, c parked.Claimed) {
	if c.Crashes > 1 {
		f.instruments.crashes.Add(1, 0)
	}
	switch {
	case c.Err != nil:
		f.quarantine(ctx, f.delivery(c.Claim), c.Message, disposition.ReasonUndecodable, c.Err)
		return
	case c.Crashes > f.config.CrashBudget:
		f.giveUpCrashed(ctx, c)
		return
	}
	f.inFlight[c.Claim] = struct{}{}
	f.buffer.bytes += c.Size
	f.queue.add(c)
}

// releaseUnknown releases rows that a commit with an unknown outcome may have
// claimed. It does not change rows that were not claimed or are claimed anew.
func (f *fetcher) releaseUnknown(ctx context.Context) error {
	if len(f.unknown) == 0 {
		return nil
	}
	if err := f.store.HandBack(ctx, f.unknown); err != nil && !errors.Is(err, parked.ErrClaimLost) {
		return err
	}
	f.unknown = nil
	return nil
}

// findDue returns which tenants have due rows. It uses the previous result if
// that is recent, and then returns reused as true.
func (f *fetcher) findDue(ctx context.Context, sel parked.Select) (due *parked.Due, reused bool, err error) {
	due, f.due = f.due, nil
	if due != nil && time.Since(f.dueAt) < reuseDue {
		return due, true, nil
	}
	f.dueAt = time.Now()
	due, err = f.store.Due(ctx, sel)
	return due, false, err
}

// requestIsolation asks the rest of the process to make room for a crashed
// message, or withdraws that request.
func (f *fetcher) requestIsolation(wanted bool) {
	switch {
	case wanted && !f.isolating:
		processGate.request(f.wakeUp)
	case !wanted && f.isolating:
		processGate.withdraw()
	}
	f.isolating = wanted
}
