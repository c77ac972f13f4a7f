package dispatch

import (
	"cmp"
	"errors"
	"slices"
	"time"
)

// attribution finds the message that closed a channel. A broker refuses some
// messages by closing the channel and does not say which of those in flight it
// refused. All of them are suspects then, and while there are suspects, one
// message at a time is in flight. A message that closes the channel again is
// alone, and the publisher can say that it was refused.
//
// The errors of some publishers cannot say that. Then a message is refused if
// it fails alone, another message gets through, and it fails alone again. If no
// other message gets through, the broker has a problem, and nothing is charged.
//
// A publisher whose errors can say it, but do not, has waited for the answer in
// vain. Then the topic has stalled, unless it has answered other messages.
type attribution struct {
	suspects []*Message // ascending by position
	alone    *Message   // in flight alone, or nil
}

func (a *attribution) active() bool { return len(a.suspects) > 0 }

// choose returns the message to publish alone: first each suspect once, then a
// suspect that failed before others got through, then another message, which
// shows whether it gets through.
func (a *attribution) choose(confirms uint64, another func() *Message) *Message {
	leastFailed := slices.MinFunc(a.suspects, func(a, b *Message) int { return cmp.Compare(a.failedAlone, b.failedAlone) })
	a.alone = leastFailed
	if leastFailed.failedAlone > 0 {
		if i := slices.IndexFunc(a.suspects, func(m *Message) bool { return m.othersGotThrough(confirms) }); i >= 0 {
			a.alone = a.suspects[i]
		} else if m := another(); m != nil {
			a.alone = m
		}
	}
	return a.alone
}

// returns notes that m is not in flight any more. It reports whether m was
// alone.
func (a *attribution) returns(m *Message) (alone bool) {
	if a.alone != m {
		return false
	}
	a.alone = nil
	return true
}

// othersGotThrough reports whether any message was confirmed since m failed
// alone.
func (m *Message) othersGotThrough(confirms uint64) bool { return confirms > m.confirmsThen }

// add makes m a suspect.
func (a *attribution) add(m *Message) {
	m.suspect, m.failedAlone = true, 0
	at, _ := slices.BinarySearchFunc(a.suspects, m, byPosition)
	a.suspects = slices.Insert(a.suspects, at, m)
}

// clear removes m from the suspects because its outcome is known.
func (a *attribution) clear(m *Message) {
	if !m.suspect {
		return
	}
	m.suspect = false
	if at, found := slices.BinarySearchFunc(a.suspects, m, byPosition); found {
		a.suspects = slices.Delete(a.suspects, at, at+1)
	}
}

func (a *attribution) loseSlots(lost map[int64]bool) {
	a.suspects = slices.DeleteFunc(a.suspects, func(m *Message) bool {
		if lost[m.Slot] {
			m.suspect = false
		}
		return lost[m.Slot]
	})
}

// errStalled is recorded with messages that wait for their topic.
var errStalled = errors.New("forwarder: the topic does not answer")

// decideUnknown makes m a suspect, or decides about a suspect that was alone in
// flight.
func (s *Scheduler) decideUnknown(m *Message, t *topic, outcome Outcome, err error, alone bool, now time.Time) {
	m.WasUnknown = true
	if t.stalled || t.stalls > 0 {
		s.stallBecauseOf(t, m, err, now)
		return
	}
	s.sending = false // messages that have not left yet come back
	s.suspect(m, err)
	switch {
	case !alone:
	case m.failedAlone == 0 || !m.othersGotThrough(s.confirms):
		m.failedAlone++
		m.confirmsThen, m.failedAt = s.confirms, now
		s.pausePublishing(err, now)
	case outcome == Unexplained:
		s.refuse(m, err, now)
	case t.answered.After(m.failedAt):
		s.postpone(m, err)
	default:
		s.stallBecauseOf(t, m, err, now)
	}
}

func (s *Scheduler) suspect(m *Message, err error) {
	if m.suspect {
		return
	}
	if !s.attribution.active() {
		s.notice(Notice{Kind: AttributionBegins, ID: m.ID, Topic: m.Topic, Err: err})
	}
	s.attribution.add(m)
}

// stallBecauseOf lets m wait and stalls its topic.
func (s *Scheduler) stallBecauseOf(t *topic, m *Message, err error, now time.Time) {
	s.postpone(m, err)
	if !t.stalled {
		s.stall(t, now)
	}
}
