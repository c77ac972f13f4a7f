package forwarder

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/ThreeDotsLabs/watermill"
)

// tenure is what this instance owns of the outbox: slots, which the rows are
// spread over by their key, each leased to one instance at a time. Instances
// share them evenly. One that joins is given some by those who have more than
// their share, each as soon as nothing of them is in flight there.
type tenure struct {
	slots   []int64   // ascending
	leaving []int64   // no longer worked on, to be given back
	short   bool      // fewer than its share
	until   time.Time // reckoned from before the renewal was sent: earlier than the database does
	asked   time.Time
	next    time.Time // when to renew, or to ask again
	busy    bool
	fault   fault
	rival   int64 // the lease of an instance with another destination, when it was met; or 0

	said      bool // and how many slots, in the log
	saidSlots int
}

// tenancy is what the database says about it.
type tenancy struct {
	slots     []int64
	share     int
	instances int
	before    *predecessor
}

// keepLease takes and renews the lease, and stops forwarding when it has run
// out.
func (l *loop) keepLease(now time.Time) {
	t := &l.tenure
	if len(t.slots) > 0 {
		if !now.Before(t.until) {
			l.config.Logger.Info("The lease has run out, forwarding stops", nil)
			l.lose(t.slots)
		} else {
			l.at(t.until)
		}
	}
	settled := l.buffer.orphans == 0
	if settled && t.short {
		t.next = now // it did not ask for more before
		t.short = false
	}
	if t.busy || l.releasing || l.stopping && len(t.slots) == 0 || t.fault.waits(l, now) {
		return
	}
	giveBack := len(t.leaving) > 0 && settled
	if now.Before(t.next) && !giveBack {
		l.at(t.next)
		return
	}
	t.busy, t.asked = true, now
	req := leaseRequest{kept: slices.Clone(t.slots), length: l.config.Lease, take: !l.stopping}
	if giveBack {
		req.back = slices.Clone(t.leaving)
	} else {
		req.avoid = l.unsettled()
	}
	seen, _ := l.cursor.sights()
	l.ask(func(ctx context.Context) func() {
		got, err := l.store.lease(ctx, req)
		return func() {
			if err == nil {
				l.cursor.wrote(seen)
			}
			l.leased(req, got, now, err)
		}
	})
}

func (l *loop) leased(req leaseRequest, got tenancy, sent time.Time, err error) {
	t := &l.tenure
	t.busy = false
	if other := (*otherDestinationError)(nil); errors.As(err, &other) {
		l.worked(&t.fault, "The lease could be renewed")
		l.giveWay(other, sent)
		return
	}
	if err != nil {
		t.fault.failed(l, "The lease could not be renewed", err)
		return
	}
	l.worked(&t.fault, "The lease could be renewed")
	t.rival = 0
	l.sayDestination(got.before)
	select {
	case <-l.running:
	default:
		close(l.running)
	}
	t.leaving = slices.DeleteFunc(t.leaving, func(slot int64) bool { return slices.Contains(req.back, slot) })

	slices.Sort(got.slots)
	gone := slices.DeleteFunc(slices.Clone(t.slots), func(slot int64) bool { return slices.Contains(got.slots, slot) })
	if len(gone) > 0 {
		l.config.Logger.Info("Another instance has taken over slots", watermill.LogFields{"slots": len(gone)})
		l.sender.gate.Store(false) // what has not left yet comes back
		l.lose(gone)
	}
	unsettled := l.unsettled() // some of which may have been lost since it was asked
	got.slots = slices.DeleteFunc(got.slots, func(slot int64) bool { return slices.Contains(unsettled, slot) })
	if len(got.slots) > len(t.slots) {
		l.reading.rescan = time.Time{} // what is in the new ones lies anywhere
	}
	t.slots = got.slots
	t.until = sent.Add(l.config.Lease)
	l.sender.leaseUntil(t.until)
	if over := len(t.slots) - got.share; over > 0 && len(t.leaving) == 0 {
		leaving := slices.Clone(t.slots[got.share:])
		l.lose(leaving)
		t.leaving = leaving
	}

	t.next = sent.Add(l.config.Lease / 3)
	t.short = len(t.slots) < got.share && l.buffer.orphans > 0
	if len(t.slots) < got.share {
		t.next = l.nextTry(sent)
	}
	l.sayShare(got.instances)
}

// unsettled are lost slots of which rows are still to be settled: their
// successors must not be read before.
func (l *loop) unsettled() []int64 {
	slots := slices.Clone(l.tenure.leaving)
	if l.buffer.orphans > 0 {
		for _, r := range l.buffer.rows {
			if r.orphan && !slices.Contains(slots, r.slot) {
				slots = append(slots, r.slot)
			}
		}
	}
	return slots
}

// sayShare logs what this instance works on when that has changed.
func (l *loop) sayShare(instances int) {
	t := &l.tenure
	if t.said && len(t.slots) == t.saidSlots {
		return
	}
	t.said, t.saidSlots = true, len(t.slots)
	what := "Forwarding"
	if len(t.slots) == 0 {
		what = "Other instances forward, waiting"
	}
	l.config.Logger.Info(what, watermill.LogFields{"slots": len(t.slots), "instances": instances})
}

// nextTry is when to ask for slots again that others own or may have left.
func (l *loop) nextTry(last time.Time) time.Time { return last.Add(min(time.Second, l.config.Lease/3)) }

// unowned says that slots without an owner were seen.
func (l *loop) unowned() {
	if next := l.nextTry(l.tenure.asked); next.Before(l.tenure.next) {
		l.tenure.next = next
	}
}

// lose drops everything that belongs to slots which another instance has, or
// is to have. What is in flight is waited for, and deleted if it is confirmed:
// that is right whoever owns it.
func (l *loop) lose(slots []int64) {
	gone := make(map[int64]bool, len(slots))
	for _, slot := range slots {
		gone[slot] = true
	}
	lost := func(r *row) bool { return gone[r.slot] }

	t := &l.tenure
	t.slots = slices.DeleteFunc(t.slots, func(slot int64) bool { return gone[slot] })
	l.reading.epoch++
	waiting := &l.settling.waiting
	waiting.charges = slices.DeleteFunc(waiting.charges, func(c charge) bool { return l.forgetLost(c.row, lost) })
	waiting.deaths = slices.DeleteFunc(waiting.deaths, func(d death) bool { return l.forgetLost(d.row, lost) })
	l.suspects = slices.DeleteFunc(l.suspects, func(r *row) bool {
		if lost(r) {
			r.suspect = false
		}
		return lost(r)
	})
	l.buffer.drop(gone)
}

func (l *loop) forgetLost(r *row, lost func(*row) bool) bool {
	if !lost(r) {
		return false
	}
	l.buffer.forget(r)
	return true
}
