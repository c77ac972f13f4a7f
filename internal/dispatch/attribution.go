package dispatch

import (
	"cmp"
	"errors"
	"slices"
	"time"
)

// attribution finds the message that made the broker close a channel. The broker does
// not say which of the messages in flight caused the close, so all of them become
// candidates. While there are candidates, only one message is in flight at a time. If
// the channel closes again, this message is the cause, and the publisher can report it
// as refused.
//
// Some publishers return errors that cannot say that a message was refused. With such a
// publisher, a message counts as refused after three events: it fails as the only
// message in flight, another message is confirmed, and the first message fails again as
// the only message in flight. If no other message is confirmed, the broker has a
// problem, and no attempt is counted.
//
// Other publishers return errors that can say that a message was refused. If such an
// error does not say so, the confirm did not arrive in time. If the broker has not
// answered for other messages of the topic in the meantime, the topic has stalled.
type attribution struct {
	candidates []*Message // in ascending order of position
	alone      *Message   // the only message in flight, or nil
}

func (a *attribution) active() bool { return len(a.candidates) > 0 }

// choose returns the next message to publish as the only message in flight. First it
// chooses each candidate once. Then it chooses a candidate that failed before another
// message was confirmed. If there is no such candidate, it chooses the message that the
// function nextReady returns. This message is not a candidate, and its outcome shows
// whether the broker confirms messages at all.
func (a *attribution) choose(confirms uint64, nextReady func() *Message) *Message {
	leastFailed := slices.MinFunc(a.candidates, func(a, b *Message) int { return cmp.Compare(a.failedAlone, b.failedAlone) })
	a.alone = leastFailed
	if leastFailed.failedAlone > 0 {
		if i := slices.IndexFunc(a.candidates, func(m *Message) bool { return m.othersGotThrough(confirms) }); i >= 0 {
			a.alone = a.candidates[i]
		} else if m := nextReady(); m != nil {
			a.alone = m
		}
	}
	return a.alone
}

// ended records that m is no longer in flight. It reports whether choose had chosen m to
// be the only message in flight.
func (a *attribution) ended(m *Message) (alone bool) {
	if a.alone != m {
		return false
	}
	a.alone = nil
	return true
}

// othersGotThrough reports whether a message was confirmed after m last failed as the
// only message in flight. The parameter confirms is the number of confirms until now.
func (m *Message) othersGotThrough(confirms uint64) bool { return confirms > m.confirmsThen }

// add adds m to the candidates.
func (a *attribution) add(m *Message) {
	m.candidate, m.failedAlone = true, 0
	at, _ := slices.BinarySearchFunc(a.candidates, m, byPosition)
	a.candidates = slices.Insert(a.candidates, at, m)
}

// clear removes m from the candidates after the Scheduler has decided whether m was
// refused.
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

// errStalled is the error that is recorded for the waiting messages of a stalled topic.
var errStalled = errors.New("forwarder: the topic does not answer")

// decideUnknown handles the outcomes Unknown and Unexplained. It makes m a candidate.
// If m has failed twice as the only message in flight, and another message was
// confirmed in between, decideUnknown decides about m. With the outcome Unexplained, m
// counts as refused. With the outcome Unknown, m is postponed. If the broker has not
// answered for the topic since the first of the two failures, the topic has then
// stalled.
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
