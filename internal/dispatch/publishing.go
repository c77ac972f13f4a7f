package dispatch

import "time"

// Sending reports whether the caller may give messages of Publish commands to the
// publisher. If Sending returns false, report such a message as NotSent instead. The
// result can change with every event and with Step.
func (s *Scheduler) Sending() bool { return s.sending }

// Recall stops sending. The caller then reports all messages that it has not given to
// the publisher as NotSent. After the last of these reports, sending continues.
func (s *Scheduler) Recall() { s.sending = false }

// InFlight returns how many publishes have no outcome yet.
func (s *Scheduler) InFlight() int { return s.inFlight }

// planPublish returns the messages to publish now. The window limits their number.
func (s *Scheduler) planPublish(now time.Time) []Publish {
	clear(s.publishes)
	s.publishes = s.publishes[:0]
	if s.stopping || len(s.slots) == 0 || s.pausing(&s.publishOutage, now) {
		return nil
	}
	for s.inFlight < s.window(now) {
		if !s.sending {
			if s.inFlight > s.topics.stalledInFlight() {
				break // recalled messages have not come back yet
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

// window returns how many messages may be in flight now. The limit is one after a
// failure, and while there are candidates. Messages of stalled topics do not count, but
// the total never exceeds Config.Window.
func (s *Scheduler) window(now time.Time) int {
	if s.publishOutage.failures > 0 || s.attribution.active() {
		return min(s.config.Window, s.topics.stalledInFlight()+1)
	}
	return min(s.config.Window, s.crowdedWindow(now)+s.topics.stalledInFlight())
}

// choose returns the message to publish next, or nil.
func (s *Scheduler) choose() *Message {
	if s.attribution.active() {
		return s.attribution.choose(s.confirms, s.nextReady)
	}
	return s.nextReady()
}

// nextReady removes and returns the next message that may be published now, or nil. It
// drops messages of excluded topics, and paused messages.
func (s *Scheduler) nextReady() *Message {
	share := s.topicShare()
	for {
		m := s.buffer.take(func(name string) bool {
			t := s.topics.active[name]
			return t == nil || t.excluded() || t.inFlight < share
		})
		if m == nil {
			return nil
		}
		t := s.topics.active[m.Topic]
		switch {
		case s.paused.pauses.Include(m.Topic, m.Tenant):
			s.holdBack(m)
		case t != nil && t.excluded():
			s.drop(t, m)
		default:
			return m
		}
	}
}

// topicShare returns how many messages of one topic may be in flight: three times the
// free part of the window, and at least one. So one topic alone can use up to three
// quarters of the window. The rest of the window stays free for other topics, however
// many topics have stalled.
func (s *Scheduler) topicShare() int { return max(1, 3*(s.config.Window-s.inFlight)) }
