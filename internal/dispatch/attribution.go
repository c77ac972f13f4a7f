package dispatch

import (
	"cmp"
	"errors"
	"slices"
	"time"
)

// attribution finds the message that made the broker close a channel. The broker
// refuses some messages in this way, and does not say which of the messages in flight
// it was. So all of them become candidates. While there are candidates, only one
// message is in flight at a time. If such a message closes the channel again, it must
// be the cause, and the publisher can report it as refused.
//
// The errors of some publishers cannot say that a message was refused. With these, a
// message counts as refused in this case: it fails while it is the only one in flight,
// another message is confirmed afterwards, and then it fails again as the only one in
// flight. If no other message is confirmed, the broker has a problem, and no attempt is
// counted.
//
// If a publisher's errors can say that a message was refused, and do not, the confirm
// did not arrive in time. Then the topic of the message has stalled, unless the broker
// has answered for other messages of the topic meanwhile.
type attribution struct {
	candidates []*Message // in ascending order of position
	alone      *Message   // the only message in flight, or nil
}

func (a *attribution) active() bool { return len(a.candidates) > 0 }

// choose returns the message to publish next, as the only one in flight. First it
// chooses each candidate once. Then it chooses a candidate that failed before other
// messages were confirmed. If there is no such candidate, it chooses a message that is
// not a candidate, which shows whether the broker confirms anything.
func (a *attribution) choose(confirms uint64, another func() *Message) *Message {
	leastFailed := slices.MinFunc(a.candidates, func(a, b *Message) int { return cmp.Compare(a.failedAlone, b.failedAlone) })
	a.alone = leastFailed
	if leastFailed.failedAlone > 0 {
		if i := slices.IndexFunc(a.candidates, func(m *Message) bool { return m.othersGotThrough(confirms) }); i >= 0 {
			a.alone = a.candidates[i]
		} else if m := another(); m != nil {
			a.alone = m
		}
	}
	return a.alone
}

// returns records that m is not in flight any more. It reports whether m was chosen to
// be the only message in flight.
func (a *attribution) returns(m *Message) (alone bool) {
	if a.alone != m {
		return false
	}
	a.alone = nil
	return true
}

// othersGotThrough reports whether any message was confirmed since m last failed as the
// only one in flight.
func (m *Message) othersGotThrough(confirms uint64) bool { return confirms > m.confirmsThen }

// add adds m to the candidates.
func (a *attribution) add(m *Message) {
	m.candidate, m.failedAlone = true, 0
	at, _ := slices.BinarySearchFunc(a.candidates, m, byPosition)
	a.candidates = slices.Insert(a.candidates, at, m)
}

// clear removes m from the candidates, because the Scheduler has decided about it.
func (a *attribution) clear(m *Message) {
	if !m.candidate {
		return
	}
	m.candidate = false
	if at, found := slices.BinarySearchFunc(a.candidates, m, byPosition); found {
		a.candidates = slices.Delete(a.candidates, at, at+1)
	}
}

func (a *attribution) loseSlots(lost map[int64]bool) {
	a.candidates = slices.DeleteFunc(a.candidates, func(m *Message) bool { return lost[m.Slot] })
}

// errStalled is the error that is recorded with messages that wait because their topic
// has stalled.
var errStalled = errors.New("forwarder: the topic does not answer")

// decideUnknown handles an outcome that is unknown. It makes m a candidate. If m is a
// candidate already and was the only message in flight, it decides whether m was
// refused or the topic has stalled.
func (s *Scheduler) decideUnknown(m *Message, t *topic, outcome Outcome, err error, alone bool, now time.Time) {
	m.WasUnknown = true
	if t.stalled || t.stalls > 0 {
		s.stallBecauseOf(t, m, err, now)
		return
	}
	s.sending = false // messages that were not sent yet come back as NotSent
	s.attribute(m, err)
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

func (s *Scheduler) attribute(m *Message, err error) {
	if m.candidate {
		return
	}
	if !s.attribution.active() {
		s.notice(Notice{Kind: AttributionBegins, ID: m.ID, Metadata: m.Metadata, Topic: m.Topic, Err: err})
	}
	s.attribution.add(m)
}

// stallBecauseOf postpones m and marks its topic as stalled.
func (s *Scheduler) stallBecauseOf(t *topic, m *Message, err error, now time.Time) {
	s.postpone(m, err)
	if !t.stalled {
		s.stall(t, now)
	}
}
