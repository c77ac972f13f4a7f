package forwarder

import (
	"slices"
	"time"

	"github.com/ThreeDotsLabs/watermill"
)

// topics keeps one that does not answer, say a queue without a majority, from
// stopping the others: none may take the whole window, and one that has
// stalled is held. What it has in flight stays there; nothing more of it is
// read or published until it answers or, when the publisher has given up
// waiting, is tried again with one message.
type topics struct {
	active map[string]*topic // those that were in use lately, or are held
	check  time.Time         // when to look for stalled ones again

	refusals refusals
}

// refusals are the topics of which messages were refused: no queue is bound, or
// it is full. Of each topic one error is logged, and one line when it accepts
// messages again; what is refused in between is counted.
type refusals map[string]*refused

type refused struct {
	messages int // attempts, that is
	last     time.Time
	accepted bool // a message of the topic was confirmed since the first one
}

// After refusalsQuiet without a refusal, the next one of a topic that accepts
// messages is an error again. At most refusalsMost topics are remembered.
const (
	refusalsQuiet = time.Minute
	refusalsMost  = 1000
)

// refuse notes a refusal, and says whether it is the first.
func (r *refusals) refuse(topic string, now time.Time) (first bool) {
	t := (*r)[topic]
	if first = t == nil || t.accepted && now.Sub(t.last) >= refusalsQuiet; first {
		if *r == nil || len(*r) >= refusalsMost {
			*r = refusals{}
		}
		t = &refused{}
		(*r)[topic] = t
	}
	t.messages++
	t.last = now
	return first
}

// accept notes a confirm. If it is the first one since a refusal, it returns how
// often messages of the topic were refused.
func (r refusals) accept(topic string) (refused int) {
	t := r[topic]
	if t == nil || t.accepted {
		return 0
	}
	t.accepted = true
	return t.messages
}

type topic struct {
	name     string
	inFlight int
	answered time.Time // last
	since    time.Time // since when it has been asked without an answer; or zero

	held     bool
	until    time.Time
	setbacks int     // times it was held since it answered: not 0 until it does
	resume   int64   // from where to read again what was dropped since then
	lanes    []*lane // whose rows were dropped
}

// blocked says whether no more of t is to be sent: it is held, or is being
// tried with one message.
func (t *topic) blocked() bool { return t.held || t.setbacks > 0 && t.inFlight > 0 }

// topic returns the state of a topic.
func (l *loop) topic(name string) *topic {
	t := l.topics.active[name]
	if t == nil {
		t = &topic{name: name}
		if l.topics.active == nil {
			l.topics.active = map[string]*topic{}
		}
		l.topics.active[name] = t
	}
	return t
}

// share is how many messages of a topic may be in flight. It leaves room for
// others, however many of them have stalled: one alone gets three quarters.
func (l *loop) share() int { return max(1, 3*(l.config.Window-l.wire.inFlight)) }

// silent is how many messages of topics that do not answer are in flight. When
// one message at a time is to be, that is without them: nothing is to wait for
// a topic that may never answer.
func (l *loop) silent() int {
	n := 0
	for _, t := range l.topics.active {
		if t.held {
			n += t.inFlight
		}
	}
	return n
}

// next returns the first row that is ready and whose topic may send, or nil.
func (l *loop) next() *row {
	share := l.share()
	for {
		r := l.buffer.ready.take(func(name string) bool {
			t := l.topic(name)
			return t.blocked() || t.inFlight < share
		})
		if r == nil || !l.topic(r.topic).blocked() {
			return r
		}
		l.drop(l.topic(r.topic), r)
	}
}

// departs and arrives keep account of what a topic has in flight.
func (l *loop) departs(r *row, now time.Time) {
	t := l.topic(r.topic)
	if t.since.IsZero() {
		t.since = now
	}
	t.inFlight++
}

func (l *loop) arrives(r *row, outcome Outcome, now time.Time) {
	t := l.topic(r.topic)
	t.inFlight--
	switch outcome {
	case Confirmed, Refused, Unacceptable:
		l.answers(t, now)
	case Unavailable:
		l.excuse()
	case Unknown:
	}
}

// answers notes that t has answered, whatever it said.
func (l *loop) answers(t *topic, now time.Time) {
	if t.setbacks > 0 {
		l.config.Logger.Info("Topic answers again", watermill.LogFields{"topic": t.name})
	}
	if t.held || t.setbacks > 0 {
		l.release(t)
	}
	t.answered, t.since, t.setbacks = now, time.Time{}, 0
	if t.inFlight > 0 {
		t.since = now
	}
}

// excuse says that nothing can be sent at all: no topic is to blame.
func (l *loop) excuse() {
	for _, t := range l.topics.active {
		if t.inFlight == 0 {
			t.since = time.Time{}
		}
	}
}

// idle says whether t can be forgotten.
func (t *topic) idle(now time.Time) bool {
	return t.inFlight == 0 && t.since.IsZero() && t.setbacks == 0 && now.Sub(t.answered) > time.Second
}

// watchTopics holds those that have stalled, and tries again those that have
// been held for long enough.
func (l *loop) watchTopics(now time.Time) {
	if len(l.topics.active) == 0 {
		return
	}
	if now.Before(l.topics.check) {
		l.at(l.topics.check)
		return
	}
	l.topics.check = now.Add(l.config.StallTimeout / 4)
	l.at(l.topics.check)
	for _, t := range l.topics.active {
		switch {
		case t.idle(now):
			delete(l.topics.active, t.name)
		case t.held && t.inFlight == 0 && !now.Before(t.until):
			l.release(t)
		case !t.held && !t.since.IsZero() && now.Sub(t.since) >= l.config.StallTimeout:
			l.hold(t, now)
		}
	}
}

// hold has t wait. What has not been sent of it is dropped.
func (l *loop) hold(t *topic, now time.Time) {
	if t.setbacks == 0 {
		l.config.Logger.Error("Topic does not answer, others go on without it", errStalled,
			watermill.LogFields{"topic": t.name, "in_flight": t.inFlight})
		t.resume = l.buffer.low
		l.instruments.stall(t.name)
	}
	t.setbacks++
	t.held, t.until = true, now.Add(jitter(pauses(t.setbacks)))
	for _, r := range l.buffer.rows {
		if r.topic == t.name && r.ticket != 0 && r.lane != nil {
			l.buffer.bar(r.lane) // what waits behind it only takes room
		}
	}
	for _, r := range slices.Clone(l.suspects) {
		switch {
		case r.topic != t.name:
		case r.ticket == 0:
			l.postpone(r, errStalled)
		default:
			l.clear(r) // the topic is to blame, and others are not to wait for it
		}
	}
}

// release has what was dropped read again.
func (l *loop) release(t *topic) {
	t.held, t.since = false, time.Time{}
	l.rewind(t.resume)
	for _, lane := range t.lanes {
		if l.buffer.lanes[lane.key] == lane {
			l.buffer.want(lane)
		}
	}
	t.lanes = nil
}

// drop gives up a row of a topic that is blocked, until it is released. With a
// key the whole lane is given up: its next messages may go to topics that are
// not blocked, and must not go first.
func (l *loop) drop(t *topic, r *row) {
	if r.lane != nil {
		t.lanes = append(t.lanes, r.lane)
		l.buffer.empty(r.lane)
		return
	}
	t.resume = min(t.resume, r.position-1)
	l.buffer.forget(r)
}

// blockedTopics are left out of the reads.
func (l *loop) blockedTopics() []string {
	var names []string
	for name, t := range l.topics.active {
		if t.blocked() {
			names = append(names, name)
		}
	}
	return names
}
