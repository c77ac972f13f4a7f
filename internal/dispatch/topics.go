package dispatch

import (
	"maps"
	"slices"
	"time"
)

// topics keeps a topic that does not answer, for example a queue without a
// majority, from stopping the others. No topic may use the whole window. A
// stalled topic is excluded: none of its messages are read or published until
// it answers. When the publisher has given up its messages in flight, the
// Scheduler tries the topic with a single message.
type topics struct {
	active map[string]*topic // used lately, or stalled
	check  time.Time         // the next look for stalled topics

	refusals refusals
}

type topic struct {
	name     string
	inFlight int
	answered time.Time // the last answer
	since    time.Time // when the topic began to owe an answer, or zero

	stalled bool
	until   time.Time   // a stalled topic is not tried before
	stalls  int         // since its last answer
	resume  int64       // sweeps must read again above this position
	queues  []*keyQueue // whose messages were dropped
}

// excluded reports whether no more messages of t may be sent, because t is
// stalled or is tried with one message.
func (t *topic) excluded() bool { return t.stalled || t.stalls > 0 && t.inFlight > 0 }

// idle reports whether t can be forgotten.
func (t *topic) idle(now time.Time) bool {
	return t.inFlight == 0 && t.since.IsZero() && t.stalls == 0 && now.Sub(t.answered) > time.Second
}

// get returns the state of a topic.
func (ts *topics) get(name string) *topic {
	t := ts.active[name]
	if t == nil {
		t = &topic{name: name}
		if ts.active == nil {
			ts.active = map[string]*topic{}
		}
		ts.active[name] = t
	}
	return t
}

// excludedNames returns the topics that sweeps leave out.
func (ts *topics) excludedNames() []string {
	var names []string
	for name, t := range ts.active {
		if t.excluded() {
			names = append(names, name)
		}
	}
	return names
}

// stalledInFlight returns how many messages of stalled topics are in flight.
// Nothing waits for them, because a stalled topic may never answer.
func (ts *topics) stalledInFlight() int {
	n := 0
	for _, t := range ts.active {
		if t.stalled {
			n += t.inFlight
		}
	}
	return n
}

// excuse notes that nothing can be sent at all: topics without messages in
// flight owe no answer.
func (ts *topics) excuse() {
	for _, t := range ts.active {
		if t.inFlight == 0 {
			t.since = time.Time{}
		}
	}
}

// resumeFromStart lets sweeps read all messages of stalled topics when these
// resume.
func (ts *topics) resumeFromStart() {
	for _, t := range ts.active {
		t.resume = 0
	}
}

// watchTopics stalls topics that owe an answer for too long, and tries stalled
// topics again after a pause.
func (s *Scheduler) watchTopics(now time.Time) {
	ts := &s.topics
	if len(ts.active) == 0 {
		return
	}
	if now.Before(ts.check) {
		s.wake(ts.check)
		return
	}
	ts.check = now.Add(s.config.StallTimeout / 4)
	s.wake(ts.check)
	for _, name := range slices.Sorted(maps.Keys(ts.active)) {
		switch t := ts.active[name]; {
		case t.idle(now):
			delete(ts.active, name)
		case t.stalled && t.inFlight == 0 && !now.Before(t.until):
			s.resume(t)
		case !t.stalled && !t.since.IsZero() && now.Sub(t.since) >= s.config.StallTimeout:
			s.stall(t, now)
		}
	}
}

// topicAnswers notes an answer of t. A refusal is an answer too.
func (s *Scheduler) topicAnswers(t *topic, now time.Time) {
	if t.stalls > 0 {
		s.notice(Notice{Kind: TopicAnswers, Topic: t.name})
	}
	if t.stalled || t.stalls > 0 {
		s.resume(t)
	}
	t.answered, t.since, t.stalls = now, time.Time{}, 0
	if t.inFlight > 0 {
		t.since = now
	}
}

// stall excludes t. Suspects of t are not suspects any more, because the topic
// is the cause and other messages must not wait for them.
func (s *Scheduler) stall(t *topic, now time.Time) {
	if t.stalls == 0 {
		s.notice(Notice{Kind: TopicStalled, Topic: t.name, Messages: t.inFlight, Err: errStalled})
		t.resume = s.buffer.low
	}
	t.stalls++
	t.stalled, t.until = true, now.Add(s.config.Jitter(s.config.Pause(t.stalls)))
	for _, m := range s.buffer.messages {
		if m.Topic == t.name && m.ticket != 0 && m.queue != nil {
			s.buffer.dropSuccessors(m.queue) // they would only take room
		}
	}
	for _, m := range slices.Clone(s.attribution.suspects) {
		switch {
		case m.Topic != t.name:
		case m.ticket == 0:
			s.postpone(m, errStalled)
		default:
			s.attribution.clear(m)
		}
	}
}

// resume lets t send again. The messages that were dropped are read again.
func (s *Scheduler) resume(t *topic) {
	t.stalled, t.since = false, time.Time{}
	s.rewind(t.resume)
	for _, q := range t.queues {
		if s.buffer.queues[q.key] == q {
			s.buffer.wantRefill(q)
		}
	}
	t.queues = nil
}

// drop removes a message of an excluded topic from memory until the topic
// resumes. If the message has a key, the whole key queue is dropped, because its
// next messages may have other topics and must not be sent first.
func (s *Scheduler) drop(t *topic, m *Message) {
	if m.queue != nil {
		t.queues = append(t.queues, m.queue)
		s.buffer.dropAll(m.queue)
		return
	}
	t.resume = min(t.resume, m.Position-1)
	s.buffer.forget(m)
}
