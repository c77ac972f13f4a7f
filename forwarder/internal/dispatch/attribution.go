package dispatch

import (
	"cmp"
	"errors"
	"slices"
	"time"
)

// attribution finds the message that made the broker close a channel. The broker does not say which
// one, so all messages in flight become candidates. While there are candidates, only one message is
// in flight at a time. If the channel closes again, this message is the cause, and the publisher
// can report it as refused.
//
// If a publisher's errors cannot say that a message was refused, it counts as refused after three
// events: it fails as the only message in flight, another message is confirmed, and it fails again
// by itself. If no other message is confirmed, the broker has a problem, and no attempt is counted.
//
// If they can, and the error does not say so, the confirm did not arrive in time. If the broker has
// answered for no other message of the topic meanwhile, the topic has stalled.
type attribution struct {
	candidates []*Message // in ascending order of position
	alone      *Message   // the only message in flight, or nil
}

func (a *attribution) active() bool { return len(a.candidates) > 0 }

// choose returns the next message to publish by itself: each candidate once, then a candidate that
// failed before another message was confirmed, then what nextReady returns, which shows whether the
// broker confirms messages at all.
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

func (a *attribution) ended(m *Message) (alone bool) {
	if a.alone != m {
		return false
	}
	a.alone = nil
	return true
}

// othersGotThrough reports whether a message was confirmed after m last failed by itself.
func (m *Message) othersGotThrough(confirms uint64) bool { return confirms > m.confirmsThen }

func (a *attribution) add(m *Message) {
	m.candidate, m.failedAlone = true, 0
	at, _ := slices.BinarySearchFunc(a.candidates, m, byPosition)
	a.candidates = slices.Insert(a.candidates, at, m)
}

func (a *attribution) clear(m *Message) {
	if !m.candidate {
		return
	}
	m.candidate = false
	a.ended(m) // its topic has stalled while it is in flight
	if at, found := slices.BinarySearchFunc(a.candidates, m, byPosition); found {
		a.candidates = slices.Delete(a.candidates, at, at+1)
	}
}

func (a *attribution) loseSlots(lost map[int64]bool) {
	a.candidates = slices.DeleteFunc(a.candidates, func(m *Message) bool { return lost[m.Slot] })
}

var errStalled = errors.New("forwarder: the topic does not answer")

// decideUnknown makes m a candidate. If m has failed twice by itself, and another message was
// confirmed in between, m counts as refused if its errors are Unexplained. Otherwise it is
// postponed, and the topic has stalled if the broker has not answered for it since the first
// failure.
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
		s.postpone(m, err, Unknown)
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

// refusals counts the refused messages of each topic, for example one without a queue. An episode
// lasts from the first refusal until the topic works again. The log has one error for its first
// refusal, and one line for the first confirm after it.
type refusals map[string]*refusal

type refusal struct {
	attempts int // refusals in this episode
	last     time.Time
	accepted bool // a message of the topic was confirmed since the first refusal
}

// A new episode begins with a refusal if a message of the topic was confirmed in the current one,
// and none was refused for refusalsQuiet. At most maxRefusals topics are remembered.
const (
	refusalsQuiet = time.Minute
	maxRefusals   = 1000
)

// refuse reports whether a new episode begins with this refusal.
func (r *refusals) refuse(topic string, now time.Time) (first bool) {
	t := (*r)[topic]
	if first = t == nil || t.accepted && now.Sub(t.last) >= refusalsQuiet; first {
		if *r == nil || len(*r) >= maxRefusals {
			*r = refusals{}
		}
		t = &refusal{}
		(*r)[topic] = t
	}
	t.attempts++
	t.last = now
	return first
}

// accept returns the number of refusals in the episode at its first confirm, and otherwise 0.
func (r refusals) accept(topic string) (refused int) {
	t := r[topic]
	if t == nil || t.accepted {
		return 0
	}
	t.accepted = true
	return t.attempts
}

type outage struct {
	failures int
	until    time.Time // the work is not tried again before this time
}

func (s *Scheduler) fails(o *outage, work Work, err error, now time.Time) {
	o.failures++
	o.until = now.Add(s.config.Jitter(s.config.Pause(o.failures)))
	s.notice(Notice{Kind: WorkFailed, Work: work, Err: err})
}

// worked returns true if the previous try had failed.
func (s *Scheduler) worked(o *outage, work Work) (again bool) {
	if o.failures == 0 {
		return false
	}
	*o = outage{}
	s.notice(Notice{Kind: WorkSucceeded, Work: work})
	return true
}

// pausing makes sure that Step is called when the wait is over.
func (s *Scheduler) pausing(o *outage, now time.Time) bool {
	if now.Before(o.until) {
		s.wake(o.until)
		return true
	}
	return false
}
