package dispatch

import (
	"maps"
	"slices"
	"time"
)

// topics makes sure that a topic does not block other topics while the broker gives no
// answer for its messages. This happens, for example, when a queue has lost its
// majority. The messages of one topic must not fill the whole window. A stalled topic
// is excluded: the forwarder neither reads nor publishes its messages until the broker
// answers again. When none of its messages is in flight any more, the Scheduler tries
// the topic with a single message.
type topics struct {
	active map[string]*topic // topics that were used recently, or have stalled
	check  time.Time         // time of the next check for stalled topics

	refusals refusals
}

type topic struct {
	name     string
	inFlight int
	answered time.Time // when the broker last answered
	since    time.Time // when the messages in flight began to wait for an answer, or zero

	stalled bool
	until   time.Time   // a stalled topic is not tried before this time
	stalls  int         // number of stalls since the last answer
	resume  int64       // when the topic resumes, a sweep must read again from this position
	queues  []*keyQueue // queues whose messages were dropped from memory
}

// excluded reports whether no further message of t may be sent now, because t has
// stalled, or because a single message in flight is testing whether the broker answers
// again.
func (t *topic) excluded() bool { return t.stalled || t.stalls > 0 && t.inFlight > 0 }

// idle reports whether the state of t is no longer needed.
func (t *topic) idle(now time.Time) bool {
	return t.inFlight == 0 && t.since.IsZero() && t.stalls == 0 && now.Sub(t.answered) > time.Second
}

// get returns the state of a topic, and creates the state if the topic has none.
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

// excludedNames returns the names of the topics that sweeps leave out.
func (ts *topics) excludedNames() []string {
	var names []string
	for name, t := range ts.active {
		if t.excluded() {
			names = append(names, name)
		}
	}
	return names
}

// stalledInFlight returns the number of messages in flight whose topic has stalled.
// These messages do not count towards the window, because the broker may never answer
// for them.
func (ts *topics) stalledInFlight() int {
	n := 0
	for _, t := range ts.active {
		if t.stalled {
			n += t.inFlight
		}
	}
	return n
}

// excuse sets the waiting time of topics without messages in flight back to zero. While
// nothing can be sent, such a topic cannot get an answer.
func (ts *topics) excuse() {
	for _, t := range ts.active {
		if t.inFlight == 0 {
			t.since = time.Time{}
		}
	}
}

// resumeFromStart makes sweeps read the messages of the stalled topics from the start
// of the outbox, as soon as the topics resume.
func (ts *topics) resumeFromStart() {
	for _, t := range ts.active {
		t.resume = 0
	}
}

// watchTopics marks topics as stalled if the broker has not answered for StallTimeout.
// It also lets stalled topics try again after a pause.
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

// topicAnswers records that the broker has answered for t. A refusal is an answer, too.
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

// stallBecauseOf postpones m and marks its topic as stalled.
func (s *Scheduler) stallBecauseOf(t *topic, m *Message, err error, now time.Time) {
	s.postpone(m, err)
	if !t.stalled {
		s.stall(t, now)
	}
}

// stall marks t as stalled. It removes the messages of t from the candidates: the topic
// is the cause of the failures, and the messages of other topics must not wait.
func (s *Scheduler) stall(t *topic, now time.Time) {
	if t.stalls == 0 {
		s.notice(Notice{Kind: TopicStalled, Topic: t.name, Messages: t.inFlight, Err: errStalled})
		t.resume = s.buffer.low
	}
	t.stalls++
	t.stalled, t.until = true, now.Add(s.config.Jitter(s.config.Pause(t.stalls)))
	for _, m := range s.buffer.messages {
		if m.Topic == t.name && m.ticket != 0 && m.queue != nil {
			s.buffer.dropSuccessors(m.queue) // they would only use memory
		}
	}
	for _, m := range slices.Clone(s.attribution.candidates) {
		switch {
		case m.Topic != t.name:
		case m.ticket == 0:
			s.postpone(m, errStalled)
		default:
			s.attribution.clear(m)
		}
	}
}

// resume ends the stall of t. Messages that were dropped are read again.
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

// drop removes a message of an excluded topic from memory until the topic resumes. If
// the message has a key, the whole key queue is dropped: the next messages of the key
// may have other topics, and must not be sent first.
func (s *Scheduler) drop(t *topic, m *Message) {
	if m.queue != nil {
		t.queues = append(t.queues, m.queue)
		s.buffer.dropAll(m.queue)
		return
	}
	t.resume = min(t.resume, m.Position-1)
	s.buffer.forget(m)
}
