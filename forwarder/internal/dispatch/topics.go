package dispatch

import (
	"hash/maphash"
	"maps"
	"slices"
	"time"
)

// topics keeps a topic for which the broker gives no answer, such as a queue without a majority,
// from blocking others. Its messages must not fill the window. A stalled topic is excluded: its
// messages are neither read nor published. When none is in flight any more, a single message tests
// the topic.
//
// A topic also stalls if the publisher can send none of its messages, for example because it lacks
// a right, and can send others.
//
// A key whose head is dropped keeps its queue, and sweeps leave out the key. If there are too many
// queues, the topic is held until the broker answers: like the rows of a paused topic, its rows are
// read without their contents, and heldKeys has their keys. The queues that it has are for trials.
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
	refused bool        // it has stalled because the publisher could send none of its messages
	until   time.Time   // a stalled topic is not tried before this time
	stalls  int         // number of stalls since the last answer
	resume  int64       // when the topic resumes, a sweep must read again from this position
	queues  []*keyQueue // queues whose messages were dropped from memory
	held    bool        // its rows are read like those of a paused topic
}

// A topic is also excluded while a single message tests whether the broker answers again.
func (t *topic) excluded() bool { return t.stalled || t.stalls > 0 && t.inFlight > 0 }

func (t *topic) idle(now time.Time) bool {
	return t.inFlight == 0 && t.since.IsZero() && t.stalls == 0 && now.Sub(t.answered) > time.Second
}

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

func (ts *topics) excludedNames() []string {
	var names []string
	for name, t := range ts.active {
		if t.excluded() {
			names = append(names, name)
		}
	}
	return names
}

func (ts *topics) heldNames() []string {
	var names []string
	for name, t := range ts.active {
		if t.held {
			names = append(names, name)
		}
	}
	return names
}

// These messages do not count towards the window, because the broker may never answer for them.
func (ts *topics) stalledInFlight() int {
	n := 0
	for _, t := range ts.active {
		if t.stalled {
			n += t.inFlight
		}
	}
	return n
}

// excuse resets the waiting time of topics without messages in flight: while nothing can be sent,
// they get no answer.
func (ts *topics) excuse() {
	for _, t := range ts.active {
		if t.inFlight == 0 {
			t.since = time.Time{}
		}
	}
}

// resumeFromStart makes sweeps read stalled topics from the start of the outbox when they resume.
func (ts *topics) resumeFromStart() {
	for _, t := range ts.active {
		t.resume = 0
	}
}

// watchTopics stalls topics after StallTimeout, and lets them try again after a pause.
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
		case t.stalled && t.inFlight == 0 && !now.Before(t.until) && !t.held:
			s.resume(t)
		case t.held && t.inFlight == 0 && !now.Before(t.until):
			s.tryHeld(t)
		case !t.stalled && !t.since.IsZero() && now.Sub(t.since) >= s.config.StallTimeout:
			s.stall(t, TopicStalled, errStalled, now)
		}
	}
}

func (s *Scheduler) topicAnswers(t *topic, now time.Time) {
	if t.stalls > 0 {
		s.notice(Notice{Kind: TopicAnswers, Topic: t.name})
	}
	if t.stalled || t.stalls > 0 {
		s.resume(t)
	}
	t.answered, t.since, t.stalls, t.refused = now, time.Time{}, 0, false
	if t.inFlight > 0 {
		t.since = now
	}
}

func (s *Scheduler) stallBecauseOf(t *topic, m *Message, err error, now time.Time) {
	s.postpone(m, err, Unknown)
	if !t.stalled {
		s.stall(t, TopicStalled, errStalled, now)
	}
}

// refuseTopic stops sending a topic whose messages the publisher cannot send. Messages that were not
// sent yet come back as NotSent.
func (s *Scheduler) refuseTopic(t *topic, m *Message, err error, now time.Time) {
	s.worked(&s.publishOutage, Publishing)
	s.sending = false
	s.postpone(m, err, Refused)
	t.refused = true
	if !t.stalled {
		s.stall(t, TopicRefused, err, now)
		t.until = now.Add(s.config.Jitter(s.config.StallTimeout))
	}
}

// mustBeAlone reports whether m is the trial of a refused topic. It is sent when no other message
// is in flight, because a broker that refuses it may close the channel.
func (s *Scheduler) mustBeAlone(m *Message) bool {
	if m.candidate || !s.topics.get(m.Topic).refused {
		return false
	}
	s.attribution.add(m)
	return true
}

// The topic is the cause, so its messages are no candidates, and other topics must not wait.
func (s *Scheduler) stall(t *topic, kind NoticeKind, reason error, now time.Time) {
	if t.stalls == 0 {
		s.notice(Notice{Kind: kind, Topic: t.name, Messages: t.inFlight, Err: reason})
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
			s.postpone(m, reason, Unknown)
		default:
			s.attribution.clear(m)
		}
	}
}

func (s *Scheduler) resume(t *topic) {
	t.stalled, t.since = false, time.Time{}
	if t.held {
		s.release(t)
		return
	}
	s.rewind(t.resume)
	for _, q := range t.queues {
		if s.buffer.queues[q.key] == q {
			s.buffer.wantRefill(q)
		}
	}
	t.queues = nil
}

// tryHeld reads a message of a held topic. The next call tries another key, if this one has none left.
func (s *Scheduler) tryHeld(t *topic) {
	t.stalled, t.since = false, time.Time{}
	for len(t.queues) > 0 {
		q := t.queues[0]
		t.queues = t.queues[1:]
		if s.buffer.queues[q.key] == q {
			s.buffer.wantRefill(q)
			return
		}
	}
	s.release(t)
}

// release makes the next sweep, from the start of the outbox, read the rows of a held topic.
func (s *Scheduler) release(t *topic) {
	for _, q := range t.queues {
		if s.buffer.queues[q.key] == q && q.head == nil {
			q.epoch++
			delete(s.buffer.queues, q.key)
		}
	}
	t.held, t.queues = false, nil
	s.Rescan()
	s.reading.epoch++ // the read under way may have rows of deleted queues
	s.reading.next = time.Time{}
}

// drop drops m until its topic resumes, with its whole key queue: the next messages of the key may
// have other topics, and must not be sent first.
func (s *Scheduler) drop(t *topic, m *Message) {
	if m.queue != nil {
		if len(s.buffer.queues) > s.holdFrom && len(t.queues) >= s.trials {
			t.held = true
			s.holdBack(m)
			return
		}
		t.queues = append(t.queues, m.queue)
		if len(t.queues) > maxQueues {
			t.queues = t.queues[1:] // it may have been listed again
		}
		s.buffer.dropAll(m.queue)
		return
	}
	t.resume = min(t.resume, m.Position-1)
	s.buffer.forget(m)
}

// Pauses are the paused topics and tenants, in alphabetical order.
type Pauses struct{ Topics, Tenants []string }

// None reports whether nothing is paused.
func (p Pauses) None() bool { return len(p.Topics)+len(p.Tenants) == 0 }

func (p Pauses) equal(other Pauses) bool {
	return slices.Equal(p.Topics, other.Topics) && slices.Equal(p.Tenants, other.Tenants)
}

// Include reports whether messages of a topic and tenant are paused.
func (p Pauses) Include(topic, tenant string) bool {
	return slices.Contains(p.Topics, topic) || tenant != "" && slices.Contains(p.Tenants, tenant)
}

// paused keeps paused messages, and later ones with the same keys, from being sent. Paused rows
// with a key are read without their contents, once in each sweep from the start, and are not kept
// in memory: heldKeys has the position of the first paused row of each key, and later rows of the
// key are ignored. When the pauses change, a sweep from the start reads all rows again.
type paused struct {
	pauses   Pauses
	heldKeys map[uint64]int64 // maps the hash of a key to the position of the key's first paused row
	seed     maphash.Seed
}

func (p *paused) hold(key string, position int64) {
	if key == "" {
		return
	}
	if p.heldKeys == nil {
		p.heldKeys, p.seed = map[uint64]int64{}, maphash.MakeSeed()
	}
	hash := maphash.String(p.seed, key)
	if first, ok := p.heldKeys[hash]; !ok || position < first {
		p.heldKeys[hash] = position
	}
}

// held reports whether the messages of a key that are above position wait for a paused one.
func (p *paused) held(key string, position int64) bool {
	if p.heldKeys == nil {
		return false
	}
	first, ok := p.heldKeys[maphash.String(p.seed, key)]
	return ok && first <= position
}

// holds reports whether m must wait for an earlier, paused message of its key. If m blocks its key,
// the other messages wait for m instead.
func (p *paused) holds(m *Message) bool {
	return m.Key != "" && !m.BlocksKey && !m.Due && p.held(m.Key, m.Position-1)
}

// keep returns the rows that can be sent now, and remembers the keys of paused rows.
func (p *paused) keep(rows []*Message) []*Message {
	for _, m := range rows {
		if m.Paused {
			p.hold(m.Key, m.Position)
		}
	}
	return slices.DeleteFunc(rows, func(m *Message) bool { return m.Paused || p.holds(m) })
}

// After a change of the pauses, the next sweep begins at the start of the outbox.
func (s *Scheduler) setPauses(pauses Pauses) (changed bool) {
	if s.paused.pauses.equal(pauses) {
		return false
	}
	s.paused.pauses = pauses
	s.Rescan()
	s.reading.next = time.Time{}
	return true
}

// holdBack drops m, which was paused after it was read, or whose topic is held, and the later messages
// of its key.
func (s *Scheduler) holdBack(m *Message) {
	q := m.queue
	if q == nil {
		s.buffer.forget(m)
		return
	}
	s.paused.hold(m.Key, m.Position)
	if q.excluded { // sweeps have left out rows that were committed late
		s.rewind(q.refillFrom)
	}
	if len(q.waiting) > 0 && q.waiting[0].Position < m.Position { // committed late
		s.rewind(q.waiting[0].Position - 1)
	}
	s.buffer.dropAll(q)
	delete(s.buffer.queues, q.key)
}
