package dispatch

import "time"

// Sending reports whether messages may leave for the publisher. A message of a
// Publish command that has not left when Sending becomes false comes back as
// NotSent. Sending can change with every event and with Step.
func (s *Scheduler) Sending() bool { return s.sending }

// Recall stops sending: messages that have not left yet come back as NotSent.
// Sending begins again when they have come back.
func (s *Scheduler) Recall() { s.sending = false }

// InFlight returns how many publishes have no outcome yet.
func (s *Scheduler) InFlight() int { return s.inFlight }

// planPublish fills the window.
func (s *Scheduler) planPublish(now time.Time) []Publish {
	clear(s.publishes)
	s.publishes = s.publishes[:0]
	if s.stopping || len(s.slots) == 0 || s.pausing(&s.publishOutage, now) {
		return nil
	}
	for s.inFlight < s.window() {
		if !s.sending {
			if s.inFlight > s.topics.stalledInFlight() {
				break // messages that were recalled have not come back yet
			}
			s.sending = true
		}
		m := s.choose()
		if m == nil {
			break
		}
		s.tickets++
		s.inFlight++
		m.ticket = s.tickets
		t := s.topics.get(m.Topic)
		t.inFlight++
		if t.since.IsZero() {
			t.since = now
		}
		s.publishes = append(s.publishes, Publish{Message: m, Ticket: m.ticket})
	}
	return s.publishes
}

// window returns how many messages may be in flight now. If one at a time must
// be in flight, messages of stalled topics do not count.
func (s *Scheduler) window() int {
	if s.publishOutage.failures > 0 || s.attribution.active() {
		return min(s.config.Window, s.topics.stalledInFlight()+1)
	}
	return s.config.Window
}

// choose returns the message to publish next, or nil.
func (s *Scheduler) choose() *Message {
	if s.attribution.active() {
		return s.attribution.choose(s.confirms, s.nextReady)
	}
	return s.nextReady()
}

// nextReady takes the first message that is ready and whose topic may send, or
// returns nil. It drops messages of excluded topics.
func (s *Scheduler) nextReady() *Message {
	share := s.topicShare()
	for {
		m := s.buffer.ready.take(func(name string) bool {
			t := s.topics.active[name]
			return t == nil || t.excluded() || t.inFlight < share
		})
		if m == nil {
			return nil
		}
		t := s.topics.active[m.Topic]
		if t == nil || !t.excluded() {
			return m
		}
		s.drop(t, m)
	}
}

// topicShare returns how many messages of one topic may be in flight: three
// quarters of the free window. This leaves room for other topics, however many
// have stalled.
func (s *Scheduler) topicShare() int { return max(1, 3*(s.config.Window-s.inFlight)) }
