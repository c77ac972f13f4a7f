package dispatch

import (
	"slices"
	"time"
)

// Config configures a Scheduler. Every field must be set.
type Config struct {
	BatchSize     int // maximum number of rows of a read
	Window        int // maximum number of messages in flight
	BufferBytes   int // maximum size of payloads and metadata in memory; the last message may exceed it
	LookaheadRows int // number of rows that a lookahead examines, or 0: then nothing is read behind the messages in memory

	PollMin, PollMax time.Duration // shortest and longest time between two sweeps without a hint
	StallTimeout     time.Duration // how long a topic may have no answer before it stalls
	CloseTimeout     time.Duration // how long to wait after Stop for confirms, and then as long again for settlements

	// RescanEvery is the time between sweeps from the start of the outbox. Such a sweep
	// finds rows that the cursor cannot know, such as rows that were changed by hand.
	RescanEvery time.Duration

	// Policy returns how often and when refused messages of a topic are tried again.
	Policy func(topic string) Policy

	// Pause returns how long to wait after n failures in a row of work that fails for
	// all messages. The first failure has n = 1.
	Pause func(failures int) time.Duration

	// Jitter changes a wait by a random amount, so that messages that failed together
	// are not tried again together.
	Jitter func(time.Duration) time.Duration
}

// Policy says how often and when refused messages are tried again.
type Policy struct {
	MaxAttempts int // refusals before a message becomes a dead letter

	// Backoff returns how long to wait after the nth refusal of a message. The first
	// refusal has n = 1.
	Backoff func(attempt int) time.Duration
}

// Scheduler decides what a forwarder reads, publishes and records. It has no goroutine,
// does no I/O and does not read the clock. It is not safe for concurrent use.
type Scheduler struct {
	config Config
	slots  []int64 // slots that are leased to this instance; the slice is replaced, never changed

	buffer      buffer
	cursor      cursor
	reading     reading
	lookahead   lookahead
	settling    settling
	topics      topics
	paused      paused
	attribution attribution

	sending       bool
	inFlight      int
	tickets       uint64
	confirms      uint64
	publishOutage outage // while it has failures, only one message at a time is published
	publishes     []Publish

	stopping  bool
	gaveUp    bool      // does not wait for confirms any more
	stopUntil time.Time // when the wait for confirms ends, and later the wait for settlements
	returned  int       // number of messages whose outcome was unknown after Stop

	notices []Notice
	spoken  []Notice // notices of the last Step; the slice is used again
	wakeAt  time.Time
}

// New returns a Scheduler that has no slots yet.
func New(config Config) *Scheduler {
	return &Scheduler{config: config, buffer: newBuffer(4 * max(config.Window, config.BatchSize))}
}

// Step returns the work that can start at the time now. Call it after every event, and
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

// wake makes sure that Step is called at t or earlier.
func (s *Scheduler) wake(t time.Time) {
	if t.Before(s.wakeAt) {
		s.wakeAt = t
	}
}

func (s *Scheduler) notice(n Notice) { s.notices = append(s.notices, n) }

// Slots returns the slots that were set by SetSlots and not removed by LoseSlots.
func (s *Scheduler) Slots() []int64 { return s.slots }

// SetSlots sets the slots that are leased to this instance. Call LoseSlots first for
// slots that are lost.
func (s *Scheduler) SetSlots(slots []int64) {
	if len(slots) > len(s.slots) {
		s.Rescan() // the rows of the new slots can be anywhere in the outbox
	}
	s.slots = slots
}

// LoseSlots removes slots that another instance owns, or that this one will give back.
// It drops their messages from memory. It still waits for the outcome of messages in
// flight, and deletes the confirmed ones: the row of a confirmed message must be
// deleted, no matter which instance owns its slot.
func (s *Scheduler) LoseSlots(slots []int64) {
	lost := make(map[int64]bool, len(slots))
	for _, slot := range slots {
		lost[slot] = true
	}
	s.slots = slices.DeleteFunc(slices.Clone(s.slots), func(slot int64) bool { return lost[slot] })
	s.reading.epoch++
	s.lookahead.reset()
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

// Orphans returns how many messages of lost slots are in flight, or have an outcome
// that waits to be recorded.
func (s *Scheduler) Orphans() int { return s.buffer.orphans }

// OrphanSlots returns the slots of the messages that Orphans counts, in ascending
// order. Do not lease such a slot again before OrphanSlots leaves it out. Otherwise
// later messages of a key could be sent first.
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

// Sight returns the highest position that was read. Call it before a transaction of the
// forwarder begins, and pass the result to Wrote after the transaction has ended.
func (s *Scheduler) Sight() Sight {
	seen, _ := s.cursor.sights()
	tail, _ := s.lookahead.tail.cursor.sights()
	round, _ := s.lookahead.round.cursor.sights()
	return Sight{seen, tail, round}
}

// Wrote reports that a transaction of the forwarder, which changed something, has
// ended. Sight returned seen before the transaction began.
func (s *Scheduler) Wrote(seen Sight) {
	s.cursor.wrote(seen.sight)
	s.lookahead.tail.cursor.wrote(seen.tail)
	s.lookahead.round.cursor.wrote(seen.round)
}

// Stop ends reading and publishing. After it the Scheduler waits up to
// Config.CloseTimeout for confirms, and then as long again for settlements.
func (s *Scheduler) Stop(now time.Time) {
	s.stopping = true
	s.stopUntil = now.Add(s.config.CloseTimeout)
	s.sending = false
}

// Stopping reports whether Stop was called.
func (s *Scheduler) Stopping() bool { return s.stopping }

// drain reports whether nothing is left to wait for after Stop, and whether the time
// for waiting is over.
func (s *Scheduler) drain(now time.Time) (drained, expired bool) {
	if s.inFlight > 0 && !s.gaveUp && !now.Before(s.stopUntil) {
		s.gaveUp = true // the remaining time is for settlements
		s.stopUntil = now.Add(s.config.CloseTimeout)
	}
	s.wake(s.stopUntil)
	drained = (s.inFlight == 0 || s.gaveUp) && !s.reading.busy && !s.settling.busy && s.settling.waiting.empty()
	return drained, !now.Before(s.stopUntil)
}

// Confirms returns how many messages were confirmed.
func (s *Scheduler) Confirms() uint64 { return s.confirms }

// Returned returns how many messages had no known outcome when the forwarder stopped.
// They will be sent again.
func (s *Scheduler) Returned() int { return s.returned + s.inFlight }
