package dispatch

import "time"

// Outcome is the result of a publish.
type Outcome int

const (
	// Confirmed means that the broker has stored the message.
	Confirmed Outcome = iota

	// Refused means that the broker refused this message, but may accept it later.
	Refused

	// Unacceptable means that the broker can never accept the message.
	Unacceptable

	// Unknown means that the broker may or may not have stored the message.
	Unknown

	// Unexplained is Unknown from a publisher whose errors cannot say that a message was refused.
	Unexplained

	// Unavailable means that the publisher can send no message now.
	Unavailable

	// TopicUnavailable means that the publisher can send no message of the topic now.
	TopicUnavailable

	// NotSent: the publisher has not got the message, as Sending was false, or the lease had ended.
	NotSent
)

// Published reports the outcome of a publish. It returns false if it was reported before.
func (s *Scheduler) Published(now time.Time, p Publish, outcome Outcome, err error) bool {
	m := p.Message
	if m.ticket != p.Ticket {
		return false
	}
	m.ticket = 0
	s.inFlight--
	alone := s.attribution.ended(m)
	t := s.topics.get(m.Topic)
	t.inFlight--

	switch outcome {
	case Confirmed, Refused, Unacceptable:
		s.topicAnswers(t, now)
	case Unavailable, NotSent:
		s.topics.excuse()
	case Unknown, Unexplained, TopicUnavailable:
	}
	switch {
	case outcome == Confirmed:
		s.confirm(m, now)
	case m.orphan:
		s.buffer.forget(m) // the instance that now owns its slot publishes it
	case outcome == Refused:
		s.refuse(m, err, now)
	case outcome == Unacceptable:
		s.giveUp(m, err, false)
	case s.stopping:
		if outcome == Unknown || outcome == Unexplained {
			s.returned++
		}
		s.buffer.forget(m)
	case outcome == Unknown || outcome == Unexplained:
		s.decideUnknown(m, t, outcome, err, alone, now)
	case outcome == TopicUnavailable:
		s.refuseTopic(t, m, err, now)
	case outcome == Unavailable:
		s.pausePublishing(err, now)
		s.retry(m)
	default:
		s.retry(m)
	}
	return true
}

func (s *Scheduler) confirm(m *Message, now time.Time) {
	s.confirms++
	s.worked(&s.publishOutage, Publishing)
	if refused := s.topics.refusals.accept(m.Topic); refused > 0 {
		s.notice(Notice{Kind: TopicAccepts, Topic: m.Topic, Messages: refused})
	}
	s.attribution.clear(m)
	m.decided = true
	s.buffer.unload(m)
	s.settling.addConfirmed(m, now)
	switch q := m.queue; {
	case q == nil:
	case m.BlocksKey:
		s.settling.urgent = true // its successors can be read only after the key is unblocked in the table
	default:
		m.queue = nil
		s.buffer.advance(q)
	}
}

// After the last attempt, refuse makes m a dead letter.
func (s *Scheduler) refuse(m *Message, err error, now time.Time) {
	s.worked(&s.publishOutage, Publishing)
	policy := s.config.Policy(m.Topic)
	if m.Attempts >= policy.MaxAttempts-1 {
		s.giveUp(m, err, true)
		return
	}
	kind := FurtherRefusal
	if s.topics.refusals.refuse(m.Topic, now) {
		kind = FirstRefusal
	}
	s.notice(Notice{Kind: kind, ID: m.ID, Metadata: m.Metadata, Topic: m.Topic, Attempt: m.Attempts + 1, Size: m.Size(), Err: err})
	s.block(m)
	s.settling.waiting.Charges = append(s.settling.waiting.Charges, Charge{
		Message: m, Attempts: 1, Delay: s.config.Jitter(policy.Backoff(m.Attempts + 1)), Err: err, Cause: Refused,
		SuccessorsAfter: m.successorsAfter(),
	})
}

// postpone counts no attempt. cause is Unknown if m may have been sent, and otherwise Refused.
func (s *Scheduler) postpone(m *Message, err error, cause Outcome) {
	s.block(m)
	s.settling.waiting.Charges = append(s.settling.waiting.Charges, Charge{
		Message: m, Delay: s.config.Jitter(s.config.StallTimeout), Err: err, Cause: cause,
		SuccessorsAfter: m.successorsAfter(),
	})
}

func (s *Scheduler) giveUp(m *Message, err error, exhausted bool) {
	s.worked(&s.publishOutage, Publishing)
	size, metadata := m.Size(), m.Metadata
	s.block(m)
	s.settling.waiting.Deaths = append(s.settling.waiting.Deaths, Death{
		Message: m, Metadata: metadata, Size: size, Err: err, Exhausted: exhausted, SuccessorsAfter: m.successorsAfter(),
	})
}

// block keeps m from being published before its outcome is recorded, and drops successors.
func (s *Scheduler) block(m *Message) {
	s.attribution.clear(m)
	m.decided = true
	s.buffer.unload(m)
	if m.queue != nil {
		s.buffer.dropSuccessors(m.queue)
	}
}

// A candidate is not ready: attribution chooses when to publish it.
func (s *Scheduler) retry(m *Message) {
	if !m.candidate {
		s.buffer.put(m)
	}
}

func (s *Scheduler) pausePublishing(err error, now time.Time) {
	s.sending = false
	if !now.Before(s.publishOutage.until) {
		s.fails(&s.publishOutage, Publishing, err, now)
	}
}
