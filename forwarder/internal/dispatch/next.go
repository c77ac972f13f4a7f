package dispatch

import "time"

// Sending reports whether messages of Publish commands may go to the publisher. If not, report them
// as NotSent. The result can change with every event and with Step.
func (s *Scheduler) Sending() bool { return s.sending }

// Recall stops sending, until all messages that the publisher has not got are reported as NotSent.
func (s *Scheduler) Recall() { s.sending = false }

// InFlight returns how many publishes have no outcome yet.
func (s *Scheduler) InFlight() int { return s.inFlight }

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
		if s.mustBeAlone(m) {
			continue
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

// window is the limit of messages in flight: one after a failure, and while there are candidates.
// Those of stalled topics do not count, but the total never exceeds Config.Window.
func (s *Scheduler) window(now time.Time) int {
	if s.publishOutage.failures > 0 || s.attribution.active() {
		return min(s.config.Window, s.topics.stalledInFlight()+1)
	}
	return min(s.config.Window, s.crowdedWindow(now)+s.topics.stalledInFlight())
}

func (s *Scheduler) choose() *Message {
	if s.attribution.active() {
		return s.attribution.choose(s.confirms, s.nextReady)
	}
	return s.nextReady()
}

// nextReady returns the next message to publish, or nil. It drops messages of excluded topics,
// paused messages, and messages of paused slots.
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
		case s.paused.pauses.Include(m.Topic, m.Tenant), s.settling.stuckSlots[m.Slot] > 0:
			s.holdBack(m)
		case t != nil && t.excluded():
			s.drop(t, m)
		default:
			return m
		}
	}
}

// topicShare is three times the free part of the window, and at least one. So one topic can use up
// to three quarters of the window, however many topics have stalled.
func (s *Scheduler) topicShare() int { return max(1, 3*(s.config.Window-s.inFlight)) }
