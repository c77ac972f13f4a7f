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

	// RescanEvery is the time between sweeps from the start of the outbox. Such a sweep
	// finds rows that the cursor cannot know, such as rows that were changed by hand.
	RescanEvery time.Duration

	// Policy returns how often and when the refused messages of a topic are tried again.
	Policy func(topic string) Policy

	// Pause returns how long to wait after a failure that concerns all messages, such as a
	// failed read. failures is the number of consecutive failures.
	Pause func(failures int) time.Duration

	// Jitter changes a wait by a random amount. Messages that failed together are then not
	// tried again at the same time.
	Jitter func(time.Duration) time.Duration
}

// Policy says how often and when refused messages are tried again.
type Policy struct {
	MaxAttempts int // number of refusals after which a message becomes a dead letter

	// Backoff returns how long to wait after a refusal. attempt is 1 at the
	// first refusal of a message.
	Backoff func(attempt int) time.Duration
}

// Scheduler decides what a forwarder reads, publishes and records. It has no goroutine,
// does no I/O and does not read the clock. It is not safe for concurrent use.
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
	return &Scheduler{config: config, buffer: newBuffer(4 * max(config.Window, config.BatchSize))}
}

// Step returns the work that can start at the time now. Call it after each event, and
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

// wake makes sure that the caller calls Step at t or earlier.
func (s *Scheduler) wake(t time.Time) {
	if t.Before(s.wakeAt) {
		s.wakeAt = t
	}
}

func (s *Scheduler) notice(n Notice) { s.notices = append(s.notices, n) }

// Slots returns the slots that are leased to this instance: the slots of the last
// SetSlots, except those that LoseSlots has removed.
func (s *Scheduler) Slots() []int64 { return s.slots }

// SetSlots sets the slots that are leased to this instance. If slots were lost, call
// LoseSlots for them first.
func (s *Scheduler) SetSlots(slots []int64) {
	if len(slots) > len(s.slots) {
		s.Rescan() // the rows of the new slots can be anywhere in the outbox
	}
	s.slots = slots
}

// LoseSlots removes slots that another instance owns, or that this instance will give
// back. It drops their messages from memory. For messages in flight, the Scheduler
// still waits for the outcome. It still deletes the rows of confirmed messages, no
// matter which instance now owns the slot.
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

// Orphans returns the number of messages of lost slots that are in flight, or whose
// outcome is not recorded yet.
func (s *Scheduler) Orphans() int { return s.buffer.orphans }

// OrphanSlots returns the slots of the messages that Orphans counts, in ascending
// order. Do not lease such a slot again while OrphanSlots returns it. Otherwise later
// messages of a key could be sent before an orphan of the same key.
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

// Wrote reports that a transaction of the forwarder has ended, and that it changed
// something. seen is the result of Sight before the transaction.
func (s *Scheduler) Wrote(seen Sight) {
	s.cursor.wrote(seen.sight)
	s.lookahead.tail.cursor.wrote(seen.tail)
	s.lookahead.round.cursor.wrote(seen.round)
}

// Stop ends reading and publishing. The Scheduler then waits up to Config.CloseTimeout
// for confirms, and the same time again for settlements.
func (s *Scheduler) Stop(now time.Time) {
	s.stopping = true
	s.stopUntil = now.Add(s.config.CloseTimeout)
	s.sending = false
}

// Stopping reports whether Stop was called.
func (s *Scheduler) Stopping() bool { return s.stopping }

// drain is called after Stop, while the Scheduler waits for its remaining work. The
// result drained is true if no such work is left. The result expired is true if the
// Scheduler has waited for the maximum time.
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

// Returned returns the number of messages whose outcome was unknown when the forwarder
// stopped. These messages will be sent again.
func (s *Scheduler) Returned() int { return s.returned + s.inFlight }

// Notice is an event for the log and the metrics. The comment of each kind names the
// fields that are set.
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
	// WorkFailed means that Work failed with Err. The Scheduler tries the work again.
	WorkFailed NoticeKind = iota

	// WorkSucceeded means that Work succeeded for the first time after failures.
	WorkSucceeded

	// FirstRefusal means that a message was refused, and that this refusal is the first of
	// an episode. An episode ends when the broker has confirmed a message of the topic, and
	// has refused none for a minute. Topic, ID, Metadata, Attempt, Size and Err are set.
	FirstRefusal

	// FurtherRefusal means that a message was refused, and that this is a further refusal
	// of the same episode. The same fields as for FirstRefusal are set.
	FurtherRefusal

	// TopicAccepts means that the broker has confirmed a message of Topic for the first
	// time after refusals. Messages is the number of refusals.
	TopicAccepts

	// TopicStalled means that the broker has not answered for Topic for too long. Err is
	// set, and Messages is the number of messages of the topic in flight.
	TopicStalled

	// TopicRefused means that the publisher can send no messages of Topic because of Err.
	// Messages is the number of messages of the topic in flight.
	TopicRefused

	// TopicAnswers means that Topic had stalled, and that the broker has now answered for
	// it.
	TopicAnswers

	// AttributionBegins means that the outcome of a message is unknown because of Err. ID,
	// Metadata and Topic describe the message. From now on, messages are published one at a
	// time.
	AttributionBegins
)

// Work is a kind of work that can fail for reasons that affect all messages.
type Work int

// The kinds of work: reading rows, publishing, recording outcomes, and removing rows that
// a settlement could not delete.
const (
	Reading Work = iota
	Publishing
	Settling
	Removing
)
