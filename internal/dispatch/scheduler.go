package dispatch

import (
	"slices"
	"time"
)

// Config configures a Scheduler. Every field must be set.
type Config struct {
	BatchSize   int // rows of one read
	Window      int // messages in flight
	BufferBytes int // payloads and metadata in memory, within the size of one message
	MaxAttempts int // refusals before a message becomes a dead letter

	PollMin, PollMax time.Duration // between two sweeps without a hint
	StallTimeout     time.Duration // without an answer, before a topic stalls
	CloseTimeout     time.Duration // after Stop, for confirms and for settlements, each

	// RescanEvery is the time between sweeps from the start of the outbox. They
	// find rows that the cursor cannot know, such as rows changed by hand.
	RescanEvery time.Duration

	// Backoff returns the wait after the nth refusal of a message, from 1.
	Backoff func(attempt int) time.Duration

	// Pause returns the wait after n failures in a row of work that does not
	// work at all, from 1.
	Pause func(failures int) time.Duration

	// Jitter spreads a wait, so that messages that failed together do not come
	// back together.
	Jitter func(time.Duration) time.Duration
}

// Scheduler decides what a forwarder reads, publishes and records. It has no
// goroutine, does no I/O and knows no clock. It is not safe for concurrent use.
type Scheduler struct {
	config Config
	slots  []int64 // leased to this instance; replaced, never changed in place

	buffer      buffer
	cursor      cursor
	reading     reading
	settling    settling
	topics      topics
	attribution attribution

	sending       bool
	inFlight      int
	tickets       uint64
	confirms      uint64
	publishOutage outage // while it has failures, one message at a time is tried
	publishes     []Publish

	stopping  bool
	gaveUp    bool      // does not wait for confirms any more
	stopUntil time.Time // when waiting for confirms, and then for settlements, ends
	returned  int       // messages whose outcome was unknown after Stop

	notices []Notice
	spoken  []Notice // of the last Step, to be used again
	wakeAt  time.Time
}

// New returns a Scheduler that has no slots yet.
func New(config Config) *Scheduler {
	return &Scheduler{config: config, buffer: newBuffer(4 * max(config.Window, config.BatchSize))}
}

// Step returns the work that can start at now. Call it after every event, and
// at Commands.WakeAt.
func (s *Scheduler) Step(now time.Time) Commands {
	s.wakeAt = now.Add(time.Minute)
	s.watchTopics(now)
	c := Commands{
		Read:    s.planRead(now),
		Publish: s.planPublish(now),
		Settle:  s.planSettle(now),
	}
	if s.stopping {
		c.Drained, c.Expired = s.drain(now)
	}
	c.WakeAt = s.wakeAt
	c.Notices, s.notices, s.spoken = s.notices, s.spoken[:0], s.notices
	return c
}

// wake asks for a Step at t.
func (s *Scheduler) wake(t time.Time) {
	if t.Before(s.wakeAt) {
		s.wakeAt = t
	}
}

func (s *Scheduler) notice(n Notice) { s.notices = append(s.notices, n) }

// Slots returns the slots that SetSlots has set and LoseSlots has not removed.
func (s *Scheduler) Slots() []int64 { return s.slots }

// SetSlots sets the slots that are leased to this instance. Remove lost slots
// with LoseSlots before.
func (s *Scheduler) SetSlots(slots []int64) {
	if len(slots) > len(s.slots) {
		s.Rescan() // the rows of the new slots are anywhere
	}
	s.slots = slots
}

// LoseSlots drops the messages of slots that belong to another instance, or
// will be given back. Messages in flight are waited for and deleted if they are
// confirmed, because a confirmed message is done whoever owns its slot.
func (s *Scheduler) LoseSlots(slots []int64) {
	lost := make(map[int64]bool, len(slots))
	for _, slot := range slots {
		lost[slot] = true
	}
	s.slots = slices.DeleteFunc(slices.Clone(s.slots), func(slot int64) bool { return lost[slot] })
	s.reading.epoch++
	waiting := &s.settling.waiting
	waiting.Charges = slices.DeleteFunc(waiting.Charges, func(c Charge) bool { return s.forgetLost(c.Message, lost) })
	waiting.Deaths = slices.DeleteFunc(waiting.Deaths, func(d Death) bool { return s.forgetLost(d.Message, lost) })
	s.attribution.loseSlots(lost)
	s.buffer.loseSlots(lost)
}

func (s *Scheduler) forgetLost(m *Message, lost map[int64]bool) bool {
	if lost[m.Slot] {
		s.buffer.forget(m)
	}
	return lost[m.Slot]
}

// Orphans returns how many messages of lost slots are in flight or wait to be
// recorded.
func (s *Scheduler) Orphans() int { return s.buffer.orphans }

// OrphanSlots returns the slots of these messages, ascending. They must not be
// leased again before: the successors of these messages could be sent first.
func (s *Scheduler) OrphanSlots() []int64 {
	var slots []int64
	if s.buffer.orphans > 0 {
		for _, m := range s.buffer.messages {
			if m.orphan && !slices.Contains(slots, m.Slot) {
				slots = append(slots, m.Slot)
			}
		}
	}
	slices.Sort(slots)
	return slots
}

// Sight returns the highest position that was read. Take it before a
// transaction of the forwarder begins, and give it to Wrote at its end.
func (s *Scheduler) Sight() Sight {
	seen, _ := s.cursor.sights()
	return seen
}

// Wrote reports that a transaction that changed something has ended.
func (s *Scheduler) Wrote(seen Sight) { s.cursor.wrote(seen) }

// Stop ends reading and publishing. Confirms and settlements are waited for,
// each for Config.CloseTimeout.
func (s *Scheduler) Stop(now time.Time) {
	s.stopping = true
	s.stopUntil = now.Add(s.config.CloseTimeout)
	s.sending = false
}

// Stopping reports whether Stop was called.
func (s *Scheduler) Stopping() bool { return s.stopping }

// drain reports whether everything has ended after Stop, and whether the time
// for it is over.
func (s *Scheduler) drain(now time.Time) (drained, expired bool) {
	if s.inFlight > 0 && !s.gaveUp && !now.Before(s.stopUntil) {
		s.gaveUp = true // the rest of the time is for settlements
		s.stopUntil = now.Add(s.config.CloseTimeout)
	}
	s.wake(s.stopUntil)
	drained = (s.inFlight == 0 || s.gaveUp) && !s.reading.busy && !s.settling.busy && s.settling.waiting.empty()
	return drained, !now.Before(s.stopUntil)
}

// Confirms returns how many messages were confirmed.
func (s *Scheduler) Confirms() uint64 { return s.confirms }

// Returned returns how many messages had no known outcome after Stop. They will
// be sent again.
func (s *Scheduler) Returned() int { return s.returned + s.inFlight }
