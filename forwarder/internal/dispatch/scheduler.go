package dispatch

import (
	"slices"
	"time"
)

// Config configures a Scheduler. Every field must be set.
type Config struct {
	BatchSize     int // maximum number of rows of a read
	Window        int // maximum number of messages in flight
	BufferBytes   int // maximum bytes of payloads and metadata in memory; the last message that is read may exceed it
	LookaheadRows int // number of rows that a lookahead examines; 0 means no lookaheads

	PollMin, PollMax time.Duration // shortest and longest time between two sweeps without a hint
	StallTimeout     time.Duration // how long the broker may give no answer for a topic before the topic stalls
	CloseTimeout     time.Duration // after Stop, the maximum wait for confirms, and then the same time again for settlements

	// RescanEvery is the time between sweeps from the start of the outbox, which find rows that the
	// cursor cannot know, such as rows changed by hand.
	RescanEvery time.Duration

	Policy func(topic string) Policy

	// Pause returns the wait after consecutive failures that concern all messages.
	Pause func(failures int) time.Duration

	// Jitter changes a wait at random, so that messages are not tried again together.
	Jitter func(time.Duration) time.Duration
}

// Policy says how often and when refused messages are tried again.
type Policy struct {
	MaxAttempts int // number of refusals after which a message becomes a dead letter

	// Backoff returns the wait after a refusal. attempt is 1 at the first refusal of a message.
	Backoff func(attempt int) time.Duration
}

// Scheduler is not safe for concurrent use.
type Scheduler struct {
	config Config
	slots  []int64 // slots that are leased to this instance; the slice is replaced and never modified

	buffer      buffer
	cursor      cursor
	reading     reading
	lookahead   lookahead
	settling    settling
	topics      topics
	paused      paused
	attribution attribution

	holdFrom int // number of key queues from which stalled topics are held
	trials   int // number of key queues that a held topic keeps, to be tried with

	sending       bool
	inFlight      int
	tickets       uint64
	confirms      uint64
	publishOutage outage // while publishing fails, only one message at a time is published
	publishes     []Publish

	stopping  bool
	gaveUp    bool      // the Scheduler no longer waits for confirms
	stopUntil time.Time // end of the wait for confirms, and later of the wait for settlements
	returned  int       // messages whose publish ended with an unknown outcome after Stop

	notices []Notice
	spoken  []Notice // notices of the last Step; the next Step uses the memory of the slice again
	wakeAt  time.Time
}

// New returns a Scheduler that has no slots yet.
func New(config Config) *Scheduler {
	return &Scheduler{
		config: config, buffer: newBuffer(4 * max(config.Window, config.BatchSize)),
		holdFrom: maxQueues / 2, trials: 50,
	}
}

// Step returns the work that can start now. Call it after each event, and at Commands.WakeAt.
func (s *Scheduler) Step(now time.Time) Commands {
	s.wakeAt = now.Add(time.Minute)
	s.watchTopics(now)
	c := Commands{
		Write:   s.reading.stuck,
		Read:    s.planRead(now),
		Publish: s.planPublish(now),
		Settle:  s.planSettle(now),
	}
	s.reading.stuck = false
	if s.stopping {
		c.Drained, c.Expired = s.drain(now)
	}
	c.WakeAt = s.wakeAt
	c.Notices, s.notices, s.spoken = s.notices, s.spoken[:0], s.notices
	return c
}

func (s *Scheduler) wake(t time.Time) {
	if t.Before(s.wakeAt) {
		s.wakeAt = t
	}
}

func (s *Scheduler) notice(n Notice) { s.notices = append(s.notices, n) }

// Slots returns the slots of the last SetSlots, without those of LoseSlots.
func (s *Scheduler) Slots() []int64 { return s.slots }

// SetSlots sets the leased slots. If some were lost, call LoseSlots first.
func (s *Scheduler) SetSlots(slots []int64) {
	if len(slots) > len(s.slots) {
		s.Rescan() // the rows of the new slots can be anywhere in the outbox
	}
	s.slots = slots
}

// LoseSlots drops the messages of slots that another instance owns, or that this instance gives
// back. Outcomes of messages in flight are still awaited, and the rows of confirmed ones deleted,
// whoever owns the slot.
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

// Orphans counts the messages of lost slots that are in flight, or whose outcome is not recorded.
func (s *Scheduler) Orphans() int { return s.buffer.orphans }

// OrphanSlots returns the slots of orphans in ascending order. Leased again now, later messages of
// a key could be sent before an orphan.
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

// Sight returns the highest position that was read. Call it before a transaction of the forwarder
// begins, for Wrote.
func (s *Scheduler) Sight() Sight {
	seen, _ := s.cursor.sights()
	tail, _ := s.lookahead.tail.cursor.sights()
	round, _ := s.lookahead.round.cursor.sights()
	return Sight{seen, tail, round}
}

// Wrote reports the end of a transaction of the forwarder that changed something.
func (s *Scheduler) Wrote(seen Sight) {
	s.cursor.wrote(seen.sight)
	s.lookahead.tail.cursor.wrote(seen.tail)
	s.lookahead.round.cursor.wrote(seen.round)
}

// Stop ends reading and publishing. The Scheduler waits up to Config.CloseTimeout for confirms, and
// as long again for settlements.
func (s *Scheduler) Stop(now time.Time) {
	s.stopping = true
	s.stopUntil = now.Add(s.config.CloseTimeout)
	s.sending = false
}

// Stopping reports whether Stop was called.
func (s *Scheduler) Stopping() bool { return s.stopping }

// drain is called after Stop. drained: no work is left. expired: the time for it is over.
func (s *Scheduler) drain(now time.Time) (drained, expired bool) {
	if s.inFlight > 0 && !s.gaveUp && !now.Before(s.stopUntil) {
		s.gaveUp = true // the remaining time is for settlements
		s.stopUntil = now.Add(s.config.CloseTimeout)
	}
	s.wake(s.stopUntil)
	drained = (s.inFlight == 0 || s.gaveUp) && !s.reading.busy && !s.settling.busy && s.settling.waiting.empty()
	return drained, !now.Before(s.stopUntil)
}

// Confirms returns the total number of confirmed messages.
func (s *Scheduler) Confirms() uint64 { return s.confirms }

// Returned returns how many messages had no outcome when the forwarder stopped.
func (s *Scheduler) Returned() int { return s.returned + s.inFlight }

// Notice is an event for the log and the metrics. The comment of each kind names its fields.
type Notice struct {
	Kind     NoticeKind
	Work     Work
	Topic    string
	Messages int
	ID       string
	Metadata []byte // metadata of the message with this ID
	Attempt  int
	Size     int
	Err      error
}

// NoticeKind says what a Notice reports.
type NoticeKind int

const (
	// WorkFailed: Work failed with Err, and is tried again.
	WorkFailed NoticeKind = iota

	// WorkSucceeded: Work succeeded for the first time after failures.
	WorkSucceeded

	// FirstRefusal: this refusal is the first of an episode, which ends when the broker has
	// confirmed a message of the topic, and has refused none for a minute. Topic, ID, Metadata,
	// Attempt, Size and Err are set.
	FirstRefusal

	// FurtherRefusal has the same fields.
	FurtherRefusal

	// TopicAccepts: the broker has confirmed a message of Topic after refusals (Messages).
	TopicAccepts

	// TopicStalled: the broker has not answered for Topic for too long. Err is set, and Messages is
	// the number in flight.
	TopicStalled

	// TopicRefused: no messages of Topic can be sent because of Err. Messages is the number in
	// flight.
	TopicRefused

	// TopicAnswers: the broker has answered for a stalled Topic.
	TopicAnswers

	// AttributionBegins: the outcome of a message (ID, Metadata, Topic) is unknown because of Err.
	// From now on, messages are published one at a time.
	AttributionBegins
)

// Work is what can fail for reasons that affect all messages.
type Work int

const (
	Reading Work = iota
	Publishing
	Settling
	Removing
)
