package dispatch

import (
	"slices"
	"time"

	"github.com/watermill-once/once/internal/adaptive"
)

const (
	// maxDeaths bounds the dead letters of one settlement. They are moved one
	// by one, and all other outcomes wait for them.
	maxDeaths = 100

	// gather is how long confirmed messages wait for others, to be deleted in
	// one transaction.
	gather = 20 * time.Millisecond
)

// settling contains the outcomes that wait to be recorded. At most one
// settlement is under way; later outcomes go into the next one.
type settling struct {
	waiting   Settlement
	since     time.Time // when the first of waiting.Confirmed was confirmed
	urgent    bool      // successors can only be read after waiting is recorded
	busy      bool
	confirmed int // of the settlement under way
	deletions adaptive.Limit
	charges   adaptive.Limit
	outage    outage
}

func (st *settling) addConfirmed(m *Message, now time.Time) {
	if len(st.waiting.Confirmed) == 0 {
		st.since = now
	}
	st.waiting.Confirmed = append(st.waiting.Confirmed, m)
}

// take removes the next settlement from the outcomes that wait.
func (st *settling) take() Settlement {
	batch := st.waiting
	st.waiting, st.urgent = Settlement{}, false
	batch.Deaths, st.waiting.Deaths = split(batch.Deaths, maxDeaths)
	batch.Confirmed, st.waiting.Confirmed = split(batch.Confirmed, st.deletions.Of(len(batch.Confirmed)))
	batch.Charges, st.waiting.Charges = split(batch.Charges, st.charges.Of(len(batch.Charges)))
	return batch
}

// split returns the first items of a list, and a copy of the others.
func split[T any](list []T, first int) (head, tail []T) {
	if len(list) <= first {
		return list, nil
	}
	return list[:first], slices.Clone(list[first:])
}

// planSettle records the known outcomes.
func (s *Scheduler) planSettle(now time.Time) *Settlement {
	st := &s.settling
	if st.busy || st.waiting.empty() || s.pausing(&st.outage, now) {
		return nil
	}
	if due := st.since.Add(gather); now.Before(due) && s.canGather() {
		s.wake(due)
		return nil
	}
	batch := st.take()
	st.busy, st.confirmed = true, len(batch.Confirmed)
	batch.seen, _ = s.cursor.sights()
	return &batch
}

// canGather reports whether nothing waits for the next settlement and more
// confirms are expected.
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
		s.cursor.wrote(batch.seen)
	}
	if result.Err != nil {
		s.fails(&st.outage, Settling, result.Err, now)
	} else if s.works(&st.outage, Settling) {
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
		for _, m := range batch.Confirmed {
			s.finish(m)
		}
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

// keepsOutcome reports whether an outcome that could not be recorded is tried
// again. An orphan is forgotten, because the new owner of its slot decides.
func (s *Scheduler) keepsOutcome(m *Message) bool {
	if m.orphan {
		s.buffer.forget(m)
	}
	return !m.orphan
}

// finish forgets a message whose outcome is recorded. Its successors are read
// again if they were dropped or blocked.
func (s *Scheduler) finish(m *Message) {
	s.buffer.forget(m)
	if m.queue != nil {
		s.buffer.unblock(m.queue)
		m.queue = nil
	}
}

// readAgain rewinds to rows that the settlement did not find, because somebody
// has removed or locked them.
func (s *Scheduler) readAgain(batch *Settlement) {
	lowest := int64(everything)
	for _, c := range batch.Charges {
		lowest = min(lowest, c.Message.Position)
	}
	for _, d := range batch.Deaths {
		lowest = min(lowest, d.Message.Position)
	}
	s.rewind(lowest - 1)
}

// Unrecorded returns how many confirmed messages are not certainly deleted.
func (s *Scheduler) Unrecorded() int { return len(s.settling.waiting.Confirmed) + s.settling.confirmed }
