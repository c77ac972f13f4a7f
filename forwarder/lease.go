package forwarder

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/ThreeDotsLabs/watermill"
)

// tenure is the state of this instance's leases. The outbox is divided into slots, each leased to
// one instance. The ordering key or the id of a message determines its slot. All instances get the
// same number of slots: when one joins, the others give slots back, each as soon as none of its
// messages is in flight. They give none to an instance that has just started, or that has not
// renewed its lease for a while. Otherwise an instance that dies at each start would leave most
// slots without an owner.
type tenure struct {
	leaving []int64   // slots that get no more work and will be given back
	short   bool      // this instance has fewer slots than its share
	until   time.Time // end of the lease; counted from before the request, so the lease in the database ends later
	asked   time.Time
	next    time.Time // when to renew the lease, or to request more slots
	since   time.Time // first request
	busy    bool
	fault   fault
	rival   int64 // end of the lease of an instance with another destination, or 0

	logged      bool // whether the number of slots was logged
	loggedSlots int
}

type tenancy struct {
	slots     []int64
	share     int
	instances int
	before    *predecessor
}

// When the lease has ended, keepLease stops forwarding.
func (l *loop) keepLease(now time.Time) {
	t, s := &l.tenure, l.scheduler
	if len(s.Slots()) > 0 {
		if !now.Before(t.until) {
			l.config.Logger.Info("The lease has run out, forwarding stops", nil)
			s.LoseSlots(s.Slots())
		} else {
			l.wake(t.until)
		}
	}
	settled := s.Orphans() == 0
	if settled && t.short {
		t.next = now // the last request avoided slots because of their orphaned messages
		t.short = false
	}
	if t.busy || l.releasing || s.Stopping() && len(s.Slots()) == 0 || t.fault.waits(l, now) {
		return
	}
	giveBack := len(t.leaving) > 0 && settled
	if now.Before(t.next) && !giveBack {
		l.wake(t.next)
		return
	}
	t.busy, t.asked = true, now
	if t.since.IsZero() {
		t.since = now
	}
	req := leaseRequest{kept: slices.Clone(s.Slots()), length: l.config.Lease, counted: l.config.Lease / 2, take: !s.Stopping()}
	if now.Before(t.since.Add(l.config.Lease / 3)) {
		req.length = req.counted // this instance has not shown yet that it does not die at its start
	}
	if giveBack {
		req.back = slices.Clone(t.leaving)
	} else {
		req.avoid = l.unsettled()
	}
	seen := s.Sight()
	l.background(func(ctx context.Context) func() {
		got, err := l.store.lease(ctx, req)
		return func() {
			if err == nil {
				s.Wrote(seen)
			}
			l.leased(req, got, now, err)
		}
	})
}

func (l *loop) leased(req leaseRequest, got tenancy, sent time.Time, err error) {
	t, s := &l.tenure, l.scheduler
	t.busy = false
	other := (*otherDestinationError)(nil)
	elsewhere := errors.As(err, &other)
	if err != nil && !elsewhere {
		t.fault.failed(l, leaseTexts, err)
		return
	}
	if t.fault.worked(l, leaseTexts) {
		s.Rescan() // during the failure, another database may have taken over
	}
	if elsewhere {
		l.giveWay(other, sent)
		return
	}
	t.rival = 0
	l.logDestination(got.before)
	select {
	case <-l.running:
	default:
		close(l.running)
	}
	t.leaving = without(t.leaving, req.back)

	slices.Sort(got.slots)
	if gone := without(s.Slots(), got.slots); len(gone) > 0 {
		l.config.Logger.Info("Another instance has taken over slots", watermill.LogFields{"slots": len(gone)})
		l.recall()
		s.LoseSlots(gone)
	}
	s.SetSlots(without(got.slots, l.unsettled())) // some slots may have been lost since the request was sent
	t.until = sent.Add(req.length)
	l.sender.leaseUntil(t.until)
	if over := len(s.Slots()) - got.share; over > 0 && len(t.leaving) == 0 {
		t.leaving = slices.Clone(s.Slots()[got.share:])
		s.LoseSlots(t.leaving)
	}

	slots := len(s.Slots())
	t.next = sent.Add(l.config.Lease / 3)
	t.short = slots < got.share && s.Orphans() > 0
	if slots < got.share {
		t.next = l.nextTry(sent)
	}
	l.logShare(slots, got.instances)
}

func without(slots, excluded []int64) []int64 {
	return slices.DeleteFunc(slices.Clone(slots), func(slot int64) bool { return slices.Contains(excluded, slot) })
}

// unsettled returns lost slots with messages whose outcome is not recorded. Leased again before
// that, this instance could send later messages of the same keys first.
func (l *loop) unsettled() []int64 {
	return slices.Concat(l.tenure.leaving, without(l.scheduler.OrphanSlots(), l.tenure.leaving))
}

// recall stops sending. Messages that the publisher has not got go back to the scheduler.
func (l *loop) recall() {
	l.scheduler.Recall()
	l.sender.gate.Store(false)
}

func (l *loop) logShare(slots, instances int) {
	t := &l.tenure
	if t.logged && slots == t.loggedSlots {
		return
	}
	t.logged, t.loggedSlots = true, slots
	text := "Forwarding"
	if slots == 0 {
		text = "Other instances forward, waiting"
	}
	l.config.Logger.Info(text, watermill.LogFields{"slots": slots, "instances": instances})
}

// nextTry is for slots that other instances may have given back.
func (l *loop) nextTry(last time.Time) time.Time { return last.Add(min(time.Second, l.config.Lease/3)) }

// unowned makes the loop request more slots soon, after a read has found some without owner.
func (l *loop) unowned() {
	if next := l.nextTry(l.tenure.asked); next.Before(l.tenure.next) {
		l.tenure.next = next
	}
}
