package dispatch

import (
	"slices"
	"strconv"
	"testing"
	"time"
)

// A topic that has had no answer for StallTimeout stalls. It is tried again after a pause
// that grows, as soon as none of its messages is in flight.
func TestTopicStallsWithoutAnAnswer(t *testing.T) {
	t.Parallel()
	s := fixed()
	s.buffer.low = 77
	silent := s.topics.get("silent")
	silent.since, silent.inFlight = start, 2
	s.topics.get("unused")
	look := func(after time.Duration) {
		s.topics.check = time.Time{}
		s.watchTopics(start.Add(after))
	}
	look(8*time.Second - 1)
	if silent.stalled {
		t.Fatal("it stalls too early")
	}
	look(8 * time.Second)
	if !silent.stalled || silent.stalls != 1 || silent.resume != 77 || !silent.until.Equal(start.Add(9*time.Second)) {
		t.Fatalf("got %+v, want a stalled topic", silent)
	}
	if len(s.notices) != 1 || s.notices[0].Kind != TopicStalled || s.notices[0].Messages != 2 || s.notices[0].Topic != "silent" {
		t.Fatalf("notices are %+v", s.notices)
	}
	if got := s.topics.excludedNames(); !slices.Equal(got, []string{"silent"}) {
		t.Fatalf("excluded are %q", got)
	}
	if got := s.topics.stalledInFlight(); got != 2 {
		t.Fatalf("%d messages of stalled topics, want 2", got)
	}
	look(20 * time.Second)
	if !silent.stalled {
		t.Fatal("it is tried although its messages are in flight")
	}
	silent.inFlight = 0
	silent.until = start.Add(21 * time.Second)
	look(21*time.Second - 1)
	if !silent.stalled {
		t.Fatal("it is tried too early")
	}
	s.cursor.low = 99
	look(21 * time.Second)
	if silent.stalled || !silent.since.IsZero() || s.cursor.low != 77 || silent.excluded() {
		t.Fatalf("got %+v, and the cursor is at %d; want a topic that is tried, and read again", silent, s.cursor.low)
	}
	silent.inFlight = 1
	if !silent.excluded() {
		t.Fatal("it is tried with more than one message")
	}
	silent.resume = 55
	s.stall(silent, TopicStalled, errStalled, start)
	if silent.stalls != 2 || len(s.notices) != 1 || silent.resume != 55 || !silent.until.Equal(start.Add(2*time.Second)) {
		t.Fatalf("got %+v, want one that has stalled twice and was reported once", silent)
	}
	s.topicAnswers(silent, start)
	if silent.stalls != 0 || silent.stalled || !silent.since.Equal(start) || !silent.answered.Equal(start) || len(s.notices) != 2 {
		t.Fatalf("got %+v, want a topic that answers", silent)
	}
	silent.inFlight = 0
	s.topicAnswers(silent, start)
	if !silent.since.IsZero() || len(s.notices) != 2 {
		t.Fatalf("got %+v, want one without messages in flight, and no more notices: %+v", silent, s.notices)
	}
}

// The Scheduler checks topics four times within StallTimeout, and forgets a topic a
// second after its last answer.
func TestTopicsAreWatchedAndForgotten(t *testing.T) {
	t.Parallel()
	s := fixed()
	s.wakeAt = start.Add(time.Hour)
	s.watchTopics(start)
	if !s.topics.check.IsZero() || !s.wakeAt.Equal(start.Add(time.Hour)) {
		t.Fatal("it wakes up although there is no topic")
	}
	s.topics.get("t").answered = start
	s.watchTopics(start.Add(time.Second))
	if want := start.Add(3 * time.Second); !s.topics.check.Equal(want) || !s.wakeAt.Equal(want) {
		t.Fatalf("it looks again after %v, want 3s", s.topics.check.Sub(start))
	}
	if s.topics.active["t"] == nil {
		t.Fatal("it is forgotten too early")
	}
	s.wakeAt = start.Add(time.Hour)
	s.watchTopics(start.Add(3*time.Second - 1))
	if s.topics.active["t"] == nil || !s.wakeAt.Equal(start.Add(3*time.Second)) {
		t.Fatal("it looks too early, or does not look again")
	}
	s.watchTopics(start.Add(3 * time.Second))
	if s.topics.active["t"] != nil {
		t.Fatal("it is not forgotten")
	}

	now := start.Add(time.Second + 1)
	for name, c := range map[string]struct {
		topic topic
		idle  bool
	}{
		"idle":     {topic{answered: start}, true},
		"recent":   {topic{answered: start.Add(1)}, false},
		"in use":   {topic{answered: start, inFlight: 1}, false},
		"waiting":  {topic{answered: start, since: start}, false},
		"stalling": {topic{answered: start, stalls: 1}, false},
	} {
		if got := c.topic.idle(now); got != c.idle {
			t.Errorf("%s: idle is %t, want %t", name, got, c.idle)
		}
	}
}

// While nothing can be sent, topics get no answer. This does not make them stall.
func TestOutageExcusesTopics(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		outcome Outcome
		excused bool
	}{{Unavailable, true}, {NotSent, true}, {Unknown, false}, {Unexplained, false}} {
		s := fixed()
		s.tickets, s.inFlight = 1, 2
		m := &Message{Position: 1, Topic: "t", ticket: 1}
		s.buffer.messages[1] = m
		topic, other := s.topics.get("t"), s.topics.get("other")
		topic.inFlight, topic.since = 1, start
		other.inFlight, other.since = 1, start
		if !s.Published(start.Add(time.Second), Publish{m, 1}, c.outcome, errFailed) {
			t.Fatal("the outcome is ignored")
		}
		if topic.since.IsZero() != c.excused || other.since.IsZero() {
			t.Errorf("outcome %d: since is %v, and %v for a topic with a message in flight", c.outcome, topic.since, other.since)
		}
		if s.inFlight != 1 || topic.inFlight != 0 || m.ticket != 0 {
			t.Errorf("outcome %d: %d in flight, %d of the topic", c.outcome, s.inFlight, topic.inFlight)
		}
	}
}

// When a topic stalls, its messages in flight are no longer candidates. Its other
// messages wait until the topic resumes. Messages that wait for a message in flight
// with the same key are dropped, because they would only use memory.
func TestStalledTopicHasNoCandidates(t *testing.T) {
	t.Parallel()
	s := fixed()
	for _, m := range []*Message{
		{Position: 1, Topic: "silent", ticket: 5, Key: "k"},
		{Position: 2, Topic: "silent"},
		{Position: 3, Topic: "fine", ticket: 6, Key: "l"},
		{Position: 4, Topic: "silent", Key: "k"},
		{Position: 5, Topic: "fine", Key: "l"},
	} {
		s.buffer.add(m, false)
		if m.Position < 4 {
			s.attribution.add(m)
		}
	}
	s.stall(s.topics.get("silent"), TopicStalled, errStalled, start)
	if len(s.attribution.candidates) != 1 || s.attribution.candidates[0].Position != 3 {
		t.Fatalf("candidates are %+v, want only the one of the other topic", s.attribution.candidates)
	}
	charges := s.settling.waiting.Charges
	if len(charges) != 1 || charges[0].Message.Position != 2 || charges[0].Attempts != 0 || charges[0].Cause != Unknown ||
		charges[0].Delay != 8*time.Second {
		t.Fatalf("charges are %+v, want the message that was not in flight, without an attempt", charges)
	}
	if s.buffer.messages[4] != nil || s.buffer.messages[5] == nil {
		t.Fatal("the successor in memory is not the one of the other topic")
	}
}

// A topic that has stalled does not stall again when messages that were in flight come
// back without an answer. They wait, and they are no candidates.
func TestStalledTopicStallsOnce(t *testing.T) {
	t.Parallel()
	s := fixed()
	for position := range int64(2) {
		s.buffer.add(&Message{Position: position, Topic: "silent"}, false)
	}
	given := s.planPublish(start)
	silent := s.topics.get("silent")
	s.stall(silent, TopicStalled, errStalled, start)
	for _, p := range given {
		s.Published(start.Add(time.Hour), p, Unknown, errFailed)
	}
	if silent.stalls != 1 || !silent.until.Equal(start.Add(time.Second)) {
		t.Errorf("it has stalled %d times, and is tried after %v, want once and 1s", silent.stalls, silent.until.Sub(start))
	}
	if charges := s.settling.waiting.Charges; len(charges) != 2 || s.attribution.active() {
		t.Errorf("%d messages wait, want 2; candidates are %+v", len(charges), s.attribution.candidates)
	}
}

// A sweep from the start of the outbox leaves out the stalled topics. When such a topic
// resumes, its messages are also read from the start.
func TestStalledTopicResumesFromTheStartAfterARescan(t *testing.T) {
	t.Parallel()
	s := fixed()
	s.buffer.low, s.cursor.low = 77, 77
	silent := s.topics.get("silent")
	s.stall(silent, TopicStalled, errStalled, start)
	s.Rescan()
	s.planRead(start)
	s.cursor.low = 99
	if s.resume(silent); s.cursor.low != 0 {
		t.Errorf("it is read above %d, want 0", s.cursor.low)
	}
}

// pause simulates an operator who replaces the paused topics and tenants with p.
func (w *world) pause(p Pauses) {
	w.tracef("pauses %+v", p)
	w.pauses, w.heeds = p, false
	w.changes++
}

// A message is paused by its topic or by its tenant. The schedules cannot find a mistake
// here, because their model of the database asks Include, too.
func TestPausesIncludeTopicsAndTenants(t *testing.T) {
	t.Parallel()
	pauses := Pauses{Topics: []string{"mails", "orders"}, Tenants: []string{"a", "b"}}
	for _, c := range []struct {
		pauses        Pauses
		topic, tenant string
		want          bool
	}{
		{pauses, "mails", "", true},
		{pauses, "orders", "c", true},
		{pauses, "other", "b", true},
		{pauses, "mails", "a", true},
		{pauses, "other", "c", false},
		{pauses, "a", "mails", false},
		{pauses, "other", "", false},
		{Pauses{Tenants: []string{"a"}}, "mails", "a", true},
		{Pauses{}, "mails", "a", false},
	} {
		if got := c.pauses.Include(c.topic, c.tenant); got != c.want {
			t.Errorf("%+v includes topic %q and tenant %q: %t, want %t", c.pauses, c.topic, c.tenant, got, c.want)
		}
	}
	if !(Pauses{}).None() || (Pauses{Topics: []string{"t"}}).None() || (Pauses{Tenants: []string{"a"}}).None() {
		t.Error("None is wrong")
	}
}

// When the pauses change, a sweep from the start begins immediately, even if the next
// sweep was due later.
func TestChangedPausesAreFollowedByASweep(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		old, new Pauses
		changed  bool
	}{
		{Pauses{}, Pauses{}, false},
		{Pauses{}, Pauses{Topics: []string{"t"}}, true},
		{Pauses{Topics: []string{"t"}}, Pauses{Topics: []string{"t"}}, false},
		{Pauses{Topics: []string{"t"}}, Pauses{Tenants: []string{"t"}}, true},
		{Pauses{Tenants: []string{"a", "b"}}, Pauses{Tenants: []string{"a", "b"}}, false},
		{Pauses{Tenants: []string{"a", "b"}}, Pauses{}, true},
	} {
		s := fixed()
		s.paused.pauses = c.old
		s.reading.next, s.reading.rescan = start.Add(time.Hour), start.Add(time.Hour)
		if got := s.setPauses(c.new); got != c.changed || !s.paused.pauses.equal(c.new) {
			t.Errorf("from %+v to %+v: changed is %t, and the pauses are %+v", c.old, c.new, got, s.paused.pauses)
		}
		read := s.planRead(start)
		if (read != nil) != c.changed || read != nil && !read.Tidy {
			t.Errorf("from %+v to %+v: the next read is %+v", c.old, c.new, read)
		}
	}
}

// A message waits for an earlier paused message of its key. If the first paused row was
// committed late, later reads lower the position.
func TestMessagesWaitForAnEarlierPausedMessageOfTheirKey(t *testing.T) {
	t.Parallel()
	var p paused
	if p.held("k", 50) || p.holds(&Message{Position: 50, Key: "k"}) {
		t.Fatal("a message waits, but nothing is paused")
	}
	for _, position := range []int64{30, 20, 40} {
		p.hold("k", position)
	}
	p.hold("", 1)
	if !p.held("k", 20) || p.held("k", 19) || p.held("l", 50) || p.held("", 50) {
		t.Error("the wrong keys are held")
	}
	for name, c := range map[string]struct {
		m    Message
		want bool
	}{
		"later":           {Message{Position: 21, Key: "k"}, true},
		"the paused one":  {Message{Position: 20, Key: "k"}, false},
		"earlier":         {Message{Position: 19, Key: "k"}, false},
		"another key":     {Message{Position: 50, Key: "l"}, false},
		"no key":          {Message{Position: 50}, false},
		"due":             {Message{Position: 50, Key: "k", Due: true}, false},
		"blocks its key":  {Message{Position: 50, Key: "k", BlocksKey: true}, false},
		"later and known": {Message{Position: 41, Key: "k", Attempts: 1}, true},
	} {
		if got := p.holds(&c.m); got != c.want {
			t.Errorf("%s: holds is %t, want %t", name, got, c.want)
		}
	}
}

// If a stalled topic has too many keys, its rows are read like those of a paused topic, and sweeps go
// on. It is tried with the queues that it has, one by one, and then with a sweep from the start.
func TestStalledTopicWithManyKeysDoesNotStopSweeps(t *testing.T) {
	t.Parallel()
	s := fixed()
	s.config.BatchSize, s.config.BufferBytes = 100, 1_000_000
	s.buffer.limit = 400
	s.reading.rescan = start.Add(time.Hour)
	stuck := s.topics.get("stuck")
	s.stall(stuck, TopicStalled, errStalled, start)
	sweep := func() (r *Read) {
		t.Helper()
		s.reading.next = start
		if r = s.planRead(start); r == nil || r.Refill {
			t.Fatalf("got %+v, want a sweep", r)
		}
		return r
	}
	position := int64(0)
	for !stuck.held {
		read, rows := sweep(), []*Message{}
		for range 100 {
			position++
			rows = append(rows, &Message{Position: position, Key: strconv.FormatInt(position, 10), Topic: "stuck"})
		}
		s.RowsRead(start, read, rows, Reach{Highest: position, Covered: position, Horizon: position, Ceiling: position})
		if m := s.nextReady(); m != nil {
			t.Fatalf("%d of the stalled topic is sent", m.Position)
		}
		if position > 2*maxQueues {
			t.Fatal("the topic is not held")
		}
	}
	if read := sweep(); !slices.Equal(read.Pauses.Topics, []string{"stuck"}) || len(read.Keys) != len(s.buffer.queues) {
		t.Errorf("the sweep pauses %v, and leaves out %d of %d keys", read.Pauses.Topics, len(read.Keys), len(s.buffer.queues))
	} else {
		paused := &Message{Position: position + 1, Key: "k", Topic: "stuck", Paused: true}
		s.RowsRead(start, read, []*Message{paused, {Position: position + 2, Key: "k", Topic: "free"}, {Position: position + 3, Topic: "free"}},
			Reach{Highest: position + 3, Covered: Everything, Horizon: position, Ceiling: position})
	}
	if m := s.nextReady(); m == nil || m.Position != position+3 || s.nextReady() != nil {
		t.Errorf("got %+v, want only the message of the other topic without a key", m)
	}

	now := start.Add(time.Minute)
	for want := range 3 {
		s.topics.check = now
		s.watchTopics(now)
		if len(s.buffer.refills) != want+1 || stuck.stalled || !stuck.held {
			t.Fatalf("%d refills, stalled %t, held %t; want one more refill in each trial", len(s.buffer.refills), stuck.stalled, stuck.held)
		}
	}
	stuck.queues = nil
	s.topics.check = now
	s.watchTopics(now)
	if stuck.held || !s.reading.rescan.IsZero() {
		t.Error("a topic without queues to try is not read from the start")
	}

	stuck.held, stuck.queues = true, []*keyQueue{s.buffer.queues["1"]}
	s.reading.rescan = start.Add(time.Hour)
	epoch := s.reading.epoch
	s.topicAnswers(stuck, now)
	if stuck.held || stuck.stalls != 0 || !s.reading.rescan.IsZero() || s.buffer.queues["1"] != nil || s.reading.epoch == epoch {
		t.Error("after an answer, the topic is not read from the start, or the read under way counts")
	}
}

// The cursor passes paused rows only after a transaction of the forwarder. If a sweep returns nothing
// else, no settlement follows, so the Scheduler asks for one.
func TestSweepOfPausedRowsAsksForATransaction(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		rows    []*Message
		covered int64
		want    bool
	}{
		"paused, and there are more":   {[]*Message{{Position: 1, Key: "k", Paused: true}}, 1, true},
		"paused, and there is no more": {[]*Message{{Position: 1, Key: "k", Paused: true}}, Everything, false},
		"one is not paused":            {[]*Message{{Position: 1, Key: "k", Paused: true}, {Position: 2, Topic: "t"}}, 2, false},
		"none":                         {nil, 2, false},
	} {
		s := fixed()
		s.RowsRead(start, s.planRead(start), c.rows, Reach{Highest: 2, Covered: c.covered, Horizon: 9, Ceiling: 9})
		if due := s.reading.next.After(start); c.want && !due {
			t.Errorf("%s: the next sweep is due at once", name)
		}
		if first, second := s.Step(start).Write, s.Step(start).Write; first != c.want || second {
			t.Errorf("%s: Write is %t, then %t, want it once: %t", name, first, second, c.want)
		}
	}
}

// While the messages in memory wait for a slow publisher, nothing else is read. A pause is still seen
// within PollMax, and drops the paused ones.
func TestPauseIsSeenWhileTheMemoryIsFull(t *testing.T) {
	t.Parallel()
	for name, full := range map[string]func(s *Scheduler){
		"enough messages wait to be sent": func(*Scheduler) {},
		"there is no room":                func(s *Scheduler) { s.buffer.bytes = s.config.BufferBytes },
	} {
		s := fixed()
		var rows []*Message
		for position := range int64(s.config.BatchSize) {
			rows = append(rows, &Message{Position: position + 1, Topic: "t"})
		}
		s.RowsRead(start, s.planRead(start), rows, Reach{Highest: 16, Covered: 16, Horizon: 9, Ceiling: 9})
		full(s)
		early, due := start.Add(s.config.PollMax-1), start.Add(s.config.PollMax)
		s.wakeAt = start.Add(time.Hour)
		if read := s.planRead(early); read != nil || !s.wakeAt.Equal(due) {
			t.Fatalf("%s: before PollMax got %+v, and it wakes up after %v", name, read, s.wakeAt.Sub(start))
		}
		read := s.planRead(due)
		if read == nil || !read.State {
			t.Fatalf("%s: got %+v, want a read of the state", name, read)
		}
		s.RowsRead(due, read, nil, Reach{Pauses: Pauses{Topics: []string{"t"}}})
		if m := s.nextReady(); m != nil || len(s.buffer.messages) != 0 || !s.reading.rescan.IsZero() {
			t.Errorf("%s: %+v is sent after the pause, %d are in memory", name, m, len(s.buffer.messages))
		}
	}
}
