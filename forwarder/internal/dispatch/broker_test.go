package dispatch

import (
	"slices"
	"time"
)

// publish checks a Publish command against the rules, and simulates the publish.
func (w *world) publish(p Publish) {
	m := p.Message
	w.checkPublish(m)
	w.inFlight[m.Position] = true
	w.inProcess(3*time.Millisecond, func() {
		if !w.s.Sending() {
			w.answer(p, NotSent)
			return
		}
		w.arrive(p)
	})
}

func (w *world) checkPublish(m *Message) {
	row := w.table[m.Position]
	switch {
	case w.inFlight[m.Position]:
		w.failf("%d is published while it is in flight", m.Position)
	case w.done[m.Position]:
		w.failf("%d is published again after its confirm", m.Position)
	case !w.granted[m.Slot]:
		w.failf("%d is published, but its slot %d belongs to another instance", m.Position, m.Slot)
	case row == nil && w.late[m.Position]:
	case row == nil:
		w.failf("%d is published, but it is not in the outbox", m.Position)
	case row.due.After(w.now):
		w.failf("%d is published %v before it is due", m.Position, row.due.Sub(w.now))
	}
	if w.heeds && w.pauses.Include(m.Topic, m.Tenant) && !m.candidate {
		w.failf("%d is published, but it is paused", m.Position)
	}
	if len(w.inFlight) >= w.s.config.Window {
		w.failf("%d messages are in flight", len(w.inFlight)+1)
	}
	if m.Key == "" || row == nil {
		return
	}
	if b := w.blocked[m.Key]; b != nil && b.position != m.Position {
		w.failf("%d is published, but its key %q is blocked by %d", m.Position, m.Key, b.position)
	}
	for position, other := range w.table {
		if other.Key != m.Key || position == m.Position {
			continue
		}
		if w.inFlight[position] {
			w.failf("%d is published while %d of the same key is in flight", m.Position, position)
		}
		// A message with a lower position that is committed later need not come first.
		// A confirmed message may be published again after a restart, in any order.
		if position < m.Position && other.commit < row.commit && !w.ever[position] && !w.ever[m.Position] {
			w.failf("%d is published before %d of the same key", m.Position, position)
		}
	}
}

// arrive decides what the broker does with a message that was sent.
func (w *world) arrive(p Publish) {
	w.checkAlone(p.Message)
	w.sent = append(w.sent, p)
	row := w.table[p.Message.Position]
	switch {
	case row == nil: // another process has recorded its outcome
		w.answer(p, Confirmed)
	case w.deaf && row.Topic == deafTopic:
		w.waitForever(p)
	case row.closes:
		w.closeChannel(p)
	case row.invalid:
		w.answer(p, Unacceptable)
	case w.isSilent(row.Topic):
		w.waitForTopic(p, row.Topic)
	case w.isForbidden(row.Topic):
		w.forbid(p)
	case w.isOutage() && w.profile.vague:
		w.answer(p, w.unknown())
	case w.isOutage():
		w.answer(p, Unavailable)
	case !w.healed && w.rng.Float64() < w.profile.refusals:
		w.refused[row.Position] = true
		w.answer(p, Refused)
	case !w.healed && w.rng.Float64() < w.profile.unknown:
		w.answer(p, w.unknown())
	default:
		w.answer(p, Confirmed)
	}
}

// checkAlone checks that no message leaves while a candidate is in flight, except messages
// of a stalled topic.
func (w *world) checkAlone(m *Message) {
	a := &w.s.attribution
	if a.active() && a.alone != nil && a.alone != m && !w.s.topics.get(m.Topic).stalled {
		w.failf("%d leaves, but candidates are published one at a time", m.Position)
	}
}

// closeChannel simulates a broker that closes the channel because of a message that it
// refuses. If no other message was in flight on the channel, the publisher knows that
// this message was refused.
func (w *world) closeChannel(p Publish) {
	lost := w.sent
	w.sent = nil
	if len(lost) == 1 && w.profile.explains {
		w.answer(p, Refused)
		return
	}
	for _, p := range lost {
		w.answer(p, w.unknown())
	}
}

// forbid simulates a broker that refuses all messages of a topic, because the publisher
// lacks a right. Either the exchange cannot be declared, and p was not sent, or the broker
// closes the channel. Then the publisher knows the reason only if no other message was in
// flight.
func (w *world) forbid(p Publish) {
	lost := []Publish{p}
	if w.rng.IntN(2) == 0 {
		lost, w.sent = w.sent, nil
	}
	outcome := Unknown
	if len(lost) == 1 {
		outcome = TopicUnavailable
	}
	for _, p := range lost {
		w.answer(p, outcome)
	}
}

// isForbidden reports whether the publisher lacks the right for a topic at this moment. It
// returns true during every fourth second.
func (w *world) isForbidden(topic string) bool {
	return w.profile.forbids && !w.healed && topic == "topic1" && w.now.Second()%4 == 2
}

func (w *world) unknown() Outcome {
	if w.profile.explains {
		return Unknown
	}
	return Unexplained
}

// isSilent reports whether the broker does not answer for a topic at this moment. It
// returns true during every third second.
func (w *world) isSilent(topic string) bool {
	return w.profile.silent && !w.healed && topic == deafTopic && w.now.Second()%3 == 0
}

// isOutage reports whether the broker cannot be reached at this moment. It returns true
// during every fifth second.
func (w *world) isOutage() bool { return w.profile.outages && !w.healed && w.now.Second()%5 == 1 }

// waitForTopic simulates a publish to a topic that does not answer. After two seconds
// the publisher reports the outcome as unknown.
func (w *world) waitForTopic(p Publish, topic string) {
	patience := w.now.Add(2 * time.Second)
	var look func()
	look = func() {
		switch {
		case !slices.Contains(w.sent, p): // the channel was closed
		case !w.isSilent(topic):
			w.answer(p, Confirmed)
		case w.now.After(patience):
			w.answer(p, w.unknown())
		default:
			w.inProcess(200*time.Millisecond, look)
		}
	}
	w.inProcess(200*time.Millisecond, look)
}

// deafTopic is the topic for which the broker does not answer while world.deaf is true.
const deafTopic = "topic0"

// waitForever simulates a publish to a topic that does not answer, by a publisher that
// waits without a limit.
func (w *world) waitForever(p Publish) {
	w.inProcess(time.Second, func() {
		switch {
		case !slices.Contains(w.sent, p): // the channel was closed
		case w.deaf:
			w.waitForever(p)
		default:
			w.answer(p, Confirmed)
		}
	})
}

// answer reports the outcome of a publish to the Scheduler.
func (w *world) answer(p Publish, outcome Outcome) {
	position := p.Message.Position
	if outcome == Confirmed {
		w.stored[position] = true
	}
	w.inProcess(10*time.Millisecond, func() {
		if i := slices.Index(w.sent, p); i >= 0 {
			w.sent = slices.Delete(w.sent, i, i+1)
		}
		if w.plant.outcome != nil && !w.plant.outcome(w, &p, &outcome) {
			return
		}
		var err error
		if outcome != Confirmed {
			err = errFailed
		}
		w.tracef("outcome of %d: %d", position, outcome)
		accepted := w.s.Published(w.now, p, outcome, err)
		if accepted {
			delete(w.inFlight, position)
			if outcome == Confirmed {
				w.done[position], w.ever[position] = true, true
			}
		}
		if accepted && w.rng.IntN(50) == 0 && w.s.Published(w.now, p, outcome, err) {
			w.failf("the outcome of %d was accepted twice", position)
		}
	})
}
