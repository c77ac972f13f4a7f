package forwarder

import (
	"context"
	"slices"
	"time"

	"github.com/ThreeDotsLabs/watermill"
)

// tenure is what this instance owns, and until when.
type tenure struct {
	slots   []int64
	until   time.Time // reckoned from before the renewal was sent: earlier than the database does
	next    time.Time // when to renew, or to ask again
	asking  bool
	fault   fault
	waiting bool // for another instance, and has said so
}

// keepLease takes and renews the lease, and stops forwarding when it has run
// out.
func (l *loop) keepLease(now time.Time) {
	t := &l.tenure
	if len(t.slots) > 0 {
		if !now.Before(t.until) {
			l.config.Logger.Info("The lease has run out, forwarding stops", nil)
			l.lose()
		} else {
			l.at(t.until)
		}
	}
	if t.asking || l.releasing || l.stopping && len(t.slots) == 0 || t.fault.waits(l, now) {
		return
	}
	if now.Before(t.next) {
		l.at(t.next)
		return
	}
	t.asking = true
	sent := now
	l.ask(func(ctx context.Context) func() {
		slots, err := l.store.lease(ctx, l.config.Lease)
		return func() { l.leased(slots, sent, err) }
	})
}

func (l *loop) leased(slots []int64, sent time.Time, err error) {
	t := &l.tenure
	t.asking = false
	if err != nil {
		t.fault.failed(l, "The lease could not be renewed", err)
		return
	}
	l.worked(&t.fault, "The lease could be renewed")
	select {
	case <-l.running:
	default:
		close(l.running)
	}

	slices.Sort(slots)
	if len(t.slots) > 0 && !slices.Equal(slots, t.slots) {
		l.config.Logger.Info("Another instance has taken over slots", watermill.LogFields{"slots": len(slots)})
		l.lose()
	}
	if len(slots) == 0 {
		if !t.waiting {
			l.config.Logger.Info("Another instance forwards, waiting", nil)
		}
		t.waiting = true
		t.next = sent.Add(min(time.Second, l.config.Lease/3))
		return
	}
	if len(t.slots) == 0 {
		l.config.Logger.Info("Forwarding", watermill.LogFields{"slots": len(slots)})
		l.reading.rescan = time.Time{}
	}
	t.slots, t.waiting = slots, false
	t.until = sent.Add(l.config.Lease)
	t.next = sent.Add(l.config.Lease / 3)
	l.sender.leaseUntil(t.until)
}

// lose drops everything that now belongs to another instance. What is in
// flight is waited for, and deleted if it is confirmed: that is right whoever
// owns it.
func (l *loop) lose() {
	l.sender.gate.Store(false)
	l.sender.leaseUntil(l.sender.begun)
	l.tenure.slots = nil
	l.reading.epoch++
	l.rewind(0)
	l.suspicion, l.topics = suspicion{}, topics{}
	waiting := &l.settling.waiting
	for _, c := range waiting.charges {
		l.buffer.forget(c.row)
	}
	for _, d := range waiting.deaths {
		l.buffer.forget(d.row)
	}
	waiting.charges, waiting.deaths = nil, nil
	l.buffer.drop()
	l.wire.orphans = l.wire.inFlight
}
