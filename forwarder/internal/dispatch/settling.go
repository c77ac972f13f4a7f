package dispatch

import (
	"slices"
	"time"

	"github.com/watermill-once/once/internal/backoff"
)

const (
	// maxDeaths: dead letters are moved one by one, while all other outcomes wait.
	maxDeaths = 100

	// gather is how long a confirmed message waits for others, to be deleted in one transaction.
	gather = 100 * time.Millisecond
)

// settling contains the outcomes that are not recorded yet. One settlement is under way at a time,
// and the next records what arrives meanwhile.
type settling struct {
	waiting   Settlement
	since     time.Time // when the first message of waiting.Confirmed was confirmed
	urgent    bool      // some messages can be read again only after the outcomes in waiting are recorded
	busy      bool
	confirmed int // number of confirmed messages in the settlement under way
	deletions backoff.Limit
	charges   backoff.Limit
	outage    outage

	// stuck contains confirmed messages whose rows the database keeps. After a restart they would
	// be sent again, so their slots are paused.
	stuck      []*Message
	stuckSlots map[int64]int // number of messages with the flag stays, by slot
	removing   outage
}

func (st *settling) addConfirmed(m *Message, now time.Time) {
	if len(st.waiting.Confirmed) == 0 {
		st.since = now
	}
	st.waiting.Confirmed = append(st.waiting.Confirmed, m)
}

func (st *settling) take() Settlement {
	batch := st.waiting
	st.waiting, st.urgent = Settlement{}, false
	batch.Deaths, st.waiting.Deaths = split(batch.Deaths, maxDeaths)
	batch.Confirmed, st.waiting.Confirmed = split(batch.Confirmed, st.deletions.Of(len(batch.Confirmed)))
	batch.Charges, st.waiting.Charges = split(batch.Charges, st.charges.Of(len(batch.Charges)))
	return batch
}

func split[T any](list []T, limit int) (head, tail []T) {
	if len(list) <= limit {
		return list, nil
	}
	return list[:limit], slices.Clone(list[limit:])
}

// planSettle returns nil if no settlement can start now.
func (s *Scheduler) planSettle(now time.Time) *Settlement {
	st := &s.settling
	if st.busy {
		return nil
	}
	if len(st.stuck) > 0 && !s.pausing(&st.removing, now) {
		st.waiting.Confirmed = append(st.waiting.Confirmed, st.stuck...)
		st.stuck = nil
	}
	if st.waiting.empty() || s.pausing(&st.outage, now) {
		return nil
	}
	if due := st.since.Add(gather); now.Before(due) && s.canGather() {
		s.wake(due)
		return nil
	}
	batch := st.take()
	st.busy, st.confirmed = true, len(batch.Confirmed)
	batch.seen = s.Sight()
	return &batch
}

// canGather: nothing in the next settlement is urgent, so it may wait for more confirms.
func (s *Scheduler) canGather() bool {
	st := &s.settling
	return !st.urgent && !s.stopping && s.buffer.orphans == 0 && s.inFlight > 0 &&
		len(st.waiting.Charges) == 0 && len(st.waiting.Deaths) == 0 && len(st.waiting.Confirmed) < s.config.BatchSize/2
}

// Settled reports the result of a settlement.
func (s *Scheduler) Settled(now time.Time, batch *Settlement, result Settled) {
	st := &s.settling
	st.busy, st.confirmed = false, 0
	if result.Wrote {
		s.Wrote(batch.seen)
	}
	if result.Err != nil {
		s.fails(&st.outage, Settling, result.Err, now)
	} else if s.worked(&st.outage, Settling) {
		s.Rescan()
	}
	if result.Vanished {
		s.readAgain(batch)
	}

	if len(batch.Confirmed) > 0 {
		st.deletions.Did(result.Confirmed)
	}
	if len(batch.Charges) > 0 {
		st.charges.Did(result.Charges)
	}
	if result.Confirmed {
		s.removed(now, batch.Confirmed, result)
	} else {
		st.waiting.Confirmed = append(batch.Confirmed, st.waiting.Confirmed...)
	}
	for i, d := range batch.Deaths {
		if i < result.Deaths {
			s.finish(d.Message)
		} else if s.keepsOutcome(d.Message) {
			st.waiting.Deaths = append(st.waiting.Deaths, d)
		}
	}
	for _, c := range batch.Charges {
		if result.Charges {
			s.finish(c.Message)
		} else if s.keepsOutcome(c.Message) {
			st.waiting.Charges = append(st.waiting.Charges, c)
		}
	}
}

// removed is called after a transaction that deletes the rows of confirmed messages. While the
// database keeps some, no message of their slots is published.
func (s *Scheduler) removed(now time.Time, confirmed []*Message, result Settled) {
	st := &s.settling
	for _, m := range confirmed {
		stays := slices.Contains(result.Stays, m.Position)
		if stays != m.stays {
			st.countStuck(m, stays)
		}
		if stays {
			st.stuck = append(st.stuck, m)
		} else {
			s.finish(m)
		}
	}
	if len(result.Stays) > 0 {
		s.fails(&st.removing, Removing, result.StaysErr, now)
	} else if len(st.stuckSlots) == 0 && s.worked(&st.removing, Removing) {
		s.Rescan() // reads the slots that were paused
	}
}

func (st *settling) countStuck(m *Message, stays bool) {
	m.stays = stays
	if stays {
		if st.stuckSlots == nil {
			st.stuckSlots = map[int64]int{}
		}
		st.stuckSlots[m.Slot]++
	} else if st.stuckSlots[m.Slot]--; st.stuckSlots[m.Slot] == 0 {
		delete(st.stuckSlots, m.Slot)
	}
}

func (st *settling) readable(slots []int64) []int64 {
	if len(st.stuckSlots) == 0 {
		return slots
	}
	return slices.DeleteFunc(slices.Clone(slots), func(slot int64) bool { return st.stuckSlots[slot] > 0 })
}

// keepsOutcome reports whether the outcome of m is recorded again after a failure. An orphan is
// forgotten: the owner of its slot decides about it.
func (s *Scheduler) keepsOutcome(m *Message) bool {
	if m.orphan {
		s.buffer.forget(m)
	}
	return !m.orphan
}

// finish makes successors that were dropped, or blocked in the table, be read again.
func (s *Scheduler) finish(m *Message) {
	s.buffer.forget(m)
	if m.queue != nil {
		s.buffer.unblock(m.queue)
		m.queue = nil
	}
}

// readAgain is called if a settlement did not find all of its rows, because somebody removed them,
// or their slots are lost. What the Scheduler knows is out of date from the lowest of these rows
// on.
func (s *Scheduler) readAgain(batch *Settlement) {
	lowest := int64(Everything)
	for _, c := range batch.Charges {
		lowest = min(lowest, c.Message.Position)
	}
	for _, d := range batch.Deaths {
		lowest = min(lowest, d.Message.Position)
	}
	s.rewind(lowest - 1)
}

// Unrecorded counts the confirmed messages whose rows may still be in the outbox.
func (s *Scheduler) Unrecorded() int {
	return len(s.settling.waiting.Confirmed) + s.settling.confirmed + len(s.settling.stuck)
}
