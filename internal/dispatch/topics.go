package dispatch

import (
	"maps"
	"slices"
	"time"
)

// topics keeps a topic for which the broker does not answer, for example because a
// queue has lost its majority, from blocking other topics. One topic may not use the
// whole window. A stalled topic is excluded: the forwarder neither reads nor publishes
// its messages until the broker answers again. When none of its messages is in flight
// any more, the Scheduler tries the topic with a single message.
type topics struct {
	active map[string]*topic // topics that were used recently, or have stalled
	check  time.Time         // when to look for stalled topics next

	refusals refusals
}

type topic struct {
	name     string
	inFlight int
	answered time.Time // when the broker last answered
	since    time.Time // since when messages in flight have had no answer, or zero

	stalled bool
	until   time.Time   // a stalled topic is not tried before this time
	stalls  int         // how often the topic has stalled since its last answer
	resume  int64       // a sweep must read again above this position when the topic resumes
	queues  []*keyQueue // queues whose messages were dropped
}

// excluded reports whether no more messages of t may be sent, because t has stalled, or
// is being tried with one message.
func (t *topic) excluded() bool { return t.stalled || t.stalls > 0 && t.inFlight > 0 }

// idle reports whether t need not be remembered any more.
func (t *topic) idle(now time.Time) bool {
	return t.inFlight == 0 && t.since.IsZero() && t.stalls == 0 && now.Sub(t.answered) > time.Second
}

// get returns the state of a topic, and creates it if necessary.
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

// stalledInFlight returns how many messages of stalled topics are in flight. They do
// not count against the window, because the broker may never answer for a stalled
// topic.
func (ts *topics) stalledInFlight() int {
	n := 0
	for _, t := range ts.active {
		if t.stalled {
			n += t.inFlight
		}
	}
	return n
}

// excuse resets the time that topics have waited for an answer, if they have no
// messages in flight. While nothing can be sent, they cannot get an answer.
func (ts *topics) excuse() {
	for _, t := range ts.active {
		if t.inFlight == 0 {
			t.since = time.Time{}
		}
	}
}

// resumeFromStart makes sweeps read all messages of a stalled topic again when the
// topic resumes.
func (ts *topics) resumeFromStart() {
	for _, t := range ts.active {
		t.resume = 0
	}
}

// watchTopics marks topics as stalled if they have had no answer for StallTimeout, and
// tries stalled topics again after a pause.
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

// stall marks t as stalled. Its candidates are not candidates any more, because the
// topic is the cause of their failure, and other messages must not wait for them.
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
