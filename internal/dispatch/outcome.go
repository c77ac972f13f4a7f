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

	// Unexplained has the meaning of Unknown. It is used for publishers whose errors cannot
	// say that a message was refused.
	Unexplained

	// Unavailable means that the publisher can send no message now.
	Unavailable

	// NotSent means that the message was not given to the publisher, because Sending
	// was false or the lease had ended.
	NotSent
)

// Published reports the outcome of a publish to the Scheduler. It returns false if the
// outcome of p was reported before.
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
	case Unknown, Unexplained:
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
	case outcome == Unavailable:
		s.pausePublishing(err, now)
		s.retry(m)
	default:
		s.retry(m)
	}
	return true
}

// confirm schedules m for deletion, and lets the next message of its key be published.
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

// refuse counts an attempt of m. After the last attempt it makes m a dead letter.
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

// postpone makes m wait. It does not count an attempt.
func (s *Scheduler) postpone(m *Message, err error) {
	s.block(m)
	s.settling.waiting.Charges = append(s.settling.waiting.Charges, Charge{
		Message: m, Delay: s.config.Jitter(s.config.StallTimeout), Err: err, Cause: Unknown,
		SuccessorsAfter: m.successorsAfter(),
	})
}

// giveUp makes m a dead letter.
func (s *Scheduler) giveUp(m *Message, err error, exhausted bool) {
	s.worked(&s.publishOutage, Publishing)
	size, metadata := m.Size(), m.Metadata
	s.block(m)
	s.settling.waiting.Deaths = append(s.settling.waiting.Deaths, Death{
		Message: m, Metadata: metadata, Size: size, Err: err, Exhausted: exhausted, SuccessorsAfter: m.successorsAfter(),
	})
}

// block marks m as decided, so that m is not published again before its outcome is
// recorded. It also removes the successors of m from memory.
func (s *Scheduler) block(m *Message) {
	s.attribution.clear(m)
	m.decided = true
	s.buffer.unload(m)
	if m.queue != nil {
		s.buffer.dropSuccessors(m.queue)
	}
}

// retry makes m ready to be published again. It does nothing for a candidate, because
// attribution chooses when to publish a candidate.
func (s *Scheduler) retry(m *Message) {
	if !m.candidate {
		s.buffer.put(m)
	}
}

// pausePublishing stops sending after a failure that affects all messages.
func (s *Scheduler) pausePublishing(err error, now time.Time) {
	s.sending = false
	if !now.Before(s.publishOutage.until) {
		s.fails(&s.publishOutage, Publishing, err, now)
	}
}
