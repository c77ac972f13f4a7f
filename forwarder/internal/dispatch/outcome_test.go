package dispatch

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"testing"
	"time"
)

// flying returns a Scheduler with one message in flight, and the Publish command of this
// message.
func flying(change func(s *Scheduler, m *Message)) (*Scheduler, Publish) {
	s := fixed()
	m := &Message{Position: 5, ID: "m", Topic: "t", Key: "k", Attempts: 1, Payload: make([]byte, 30), Metadata: []byte("{}")}
	s.buffer.add(m, false)
	given := s.planPublish(start)
	change(s, m)
	return s, given[0]
}

// Each outcome has its own consequence for the message.
func TestOutcomeDecidesAboutTheMessage(t *testing.T) {
	t.Parallel()
	now := start.Add(time.Second)
	same := func(*Scheduler, *Message) {}
	lost := func(s *Scheduler, m *Message) { s.LoseSlots([]int64{0}) }
	stopping := func(s *Scheduler, _ *Message) { s.Stop(start) }
	type result struct {
		confirmed, charged, dead, ready, inMemory, returned, bytes int
	}
	for name, c := range map[string]struct {
		outcome Outcome
		change  func(s *Scheduler, m *Message)
		want    result
	}{
		"confirmed":              {Confirmed, same, result{confirmed: 1, inMemory: 1}},
		"confirmed, slot lost":   {Confirmed, lost, result{confirmed: 1, inMemory: 1}},
		"confirmed after a stop": {Confirmed, stopping, result{confirmed: 1, inMemory: 1}},
		"refused":                {Refused, same, result{charged: 1, inMemory: 1}},
		"refused, slot lost":     {Refused, lost, result{}},
		"refused after a stop":   {Refused, stopping, result{charged: 1, inMemory: 1}},
		"unacceptable":           {Unacceptable, same, result{dead: 1, inMemory: 1}},
		"not sent":               {NotSent, same, result{ready: 1, inMemory: 1, bytes: 32}},
		"not sent after a stop":  {NotSent, stopping, result{}},
		"unavailable":            {Unavailable, same, result{ready: 1, inMemory: 1, bytes: 32}},
		"unavailable, stopping":  {Unavailable, stopping, result{}},
		"unknown":                {Unknown, same, result{inMemory: 1, bytes: 32}},
		"unknown, slot lost":     {Unknown, lost, result{}},
		"unknown after a stop":   {Unknown, stopping, result{returned: 1}},
		"unexplained, stopping":  {Unexplained, stopping, result{returned: 1}},
	} {
		s, p := flying(c.change)
		if !s.Published(now, p, c.outcome, errFailed) || s.Published(now, p, c.outcome, errFailed) {
			t.Errorf("%s: the outcome does not count once", name)
		}
		waiting := &s.settling.waiting
		got := result{
			len(waiting.Confirmed), len(waiting.Charges), len(waiting.Deaths), s.buffer.ready.count, len(s.buffer.messages), s.Returned(),
			s.buffer.bytes,
		}
		if got != c.want || s.InFlight() != 0 || s.topics.get("t").inFlight != 0 {
			t.Errorf("%s: got %+v, want %+v; %d in flight", name, got, c.want, s.InFlight())
		}
		if want := c.outcome == Confirmed; (s.Confirms() == 1) != want {
			t.Errorf("%s: %d confirms", name, s.Confirms())
		}
		if s.buffer.orphans != 0 && c.outcome != Confirmed {
			t.Errorf("%s: %d orphans are left", name, s.buffer.orphans)
		}
	}
}

// A refusal counts as one attempt, and the message waits for as long as its policy
// says. The last refusal makes the message a dead letter.
func TestRefusalIsOneAttempt(t *testing.T) {
	t.Parallel()
	for attempts, dead := range map[int]bool{0: false, 1: false, 2: true, 3: true} {
		s, p := flying(func(_ *Scheduler, m *Message) { m.Attempts = attempts })
		failure := errors.New("no queue")
		s.Published(start, p, Refused, failure)
		waiting := &s.settling.waiting
		if dead {
			if len(waiting.Deaths) != 1 {
				t.Fatalf("after %d attempts: got %+v, want a dead letter", attempts, waiting)
			}
			d := waiting.Deaths[0]
			if !d.Exhausted || d.Size != 32 || string(d.Metadata) != "{}" || !errors.Is(d.Err, failure) || d.SuccessorsAfter != 0 ||
				len(s.notices) != 0 {
				t.Errorf("after %d attempts: got %+v, notices %+v", attempts, d, s.notices)
			}
			continue
		}
		if len(waiting.Charges) != 1 {
			t.Fatalf("after %d attempts: got %+v, want a charge", attempts, waiting)
		}
		c := waiting.Charges[0]
		if want := time.Duration(attempts+1) * 200 * time.Millisecond; c.Attempts != 1 || c.Delay != want || c.Cause != Refused ||
			!errors.Is(c.Err, failure) {
			t.Errorf("after %d attempts: got %+v", attempts, c)
		}
		if len(s.notices) != 1 {
			t.Fatalf("after %d attempts: notices are %+v, want one", attempts, s.notices)
		}
		if n := s.notices[0]; n.Kind != FirstRefusal || n.ID != "m" || n.Topic != "t" || n.Attempt != attempts+1 || n.Size != 32 ||
			string(n.Metadata) != "{}" {
			t.Errorf("after %d attempts: notice %+v", attempts, n)
		}
	}
	s, p := flying(func(*Scheduler, *Message) {})
	s.Published(start, p, Unacceptable, errFailed)
	if d := s.settling.waiting.Deaths[0]; d.Exhausted || d.Size != 32 {
		t.Errorf("unacceptable: got %+v", d)
	}
	s, p = flying(func(s *Scheduler, _ *Message) { s.topics.refusals.refuse("t", start) })
	s.Published(start, p, Refused, errFailed)
	if n := s.notices[0]; n.Kind != FurtherRefusal {
		t.Errorf("the second refusal: notice %+v", n)
	}
	s, p = flying(func(s *Scheduler, _ *Message) { s.topics.refusals.refuse("t", start) })
	s.Published(start, p, Confirmed, nil)
	if len(s.notices) != 1 || s.notices[0].Kind != TopicAccepts || s.notices[0].Messages != 1 {
		t.Errorf("a confirm after a refusal: notices %+v", s.notices)
	}
}

// An unknown outcome makes the message a candidate, which is published alone. If
// several messages that were sent at the same time fail, there is only one pause.
func TestUnknownOutcomeIsFollowedByPublishesOneAtATime(t *testing.T) {
	t.Parallel()
	s := fixed()
	for position := range int64(3) {
		s.buffer.add(&Message{Position: position, ID: "m", Topic: "t"}, false)
	}
	now := start
	given := append([]Publish(nil), s.planPublish(now)...)
	if len(given) != 3 || !s.Sending() {
		t.Fatalf("%d are in flight, want 3", len(given))
	}
	s.Published(now, given[0], Unknown, errFailed)
	s.Published(now, given[1], Unknown, errFailed)
	if s.Sending() || s.publishOutage.failures != 0 || len(s.notices) != 1 || s.notices[0].Kind != AttributionBegins ||
		s.notices[0].Topic != "t" {
		t.Fatalf("sending %t, notices %+v", s.Sending(), s.notices)
	}
	if got := s.planPublish(now); len(got) != 0 {
		t.Fatalf("%d are published before the others have come back", len(got))
	}
	s.Published(now, given[2], Unavailable, errFailed)
	s.Published(now, given[2], Unavailable, errFailed)
	if s.publishOutage.failures != 1 {
		t.Fatalf("%d failures, want 1", s.publishOutage.failures)
	}
	now = now.Add(time.Second)
	for _, want := range []*Message{given[0].Message, given[1].Message} {
		got := s.planPublish(now)
		if len(got) != 1 || got[0].Message != want {
			t.Fatalf("published %+v, want one candidate", got)
		}
		p := got[0]
		s.Published(now, p, Unknown, errFailed)
		if want.failedAlone != 1 || !want.WasUnknown || !want.failedAt.Equal(now) {
			t.Fatalf("got %+v, want a candidate that failed alone once", want)
		}
		if got := s.planPublish(now); len(got) != 0 {
			t.Fatalf("published %+v without a pause after the failure", got)
		}
		now = s.publishOutage.until
	}
	// Both have failed, so another message shows whether anything is confirmed.
	got := s.planPublish(now)
	if len(got) != 1 || got[0].Message != given[2].Message {
		t.Fatalf("published %+v, want the one that is no candidate", got)
	}
	p := got[0]
	s.Published(now, p, Confirmed, nil)
	got = s.planPublish(now)
	if len(got) != 1 || got[0].Message != given[0].Message {
		t.Fatalf("published %+v, want the first candidate", got)
	}
	p = got[0]
	s.Published(now, p, Unexplained, errFailed)
	if charges := s.settling.waiting.Charges; len(charges) != 1 || charges[0].Cause != Refused || p.Message.candidate ||
		len(s.attribution.candidates) != 1 {
		t.Fatalf("charges %+v, want a refusal of the first candidate", charges)
	}
}

// If the broker cannot be reached, messages that were not given to the publisher yet
// return to the Scheduler before anything else is sent.
func TestOutageRecallsMessages(t *testing.T) {
	t.Parallel()
	s := fixed()
	for position := range int64(2) {
		s.buffer.add(&Message{Position: position, Topic: "t"}, false)
	}
	given := append([]Publish(nil), s.planPublish(start)...)
	s.Published(start, given[0], Unavailable, errFailed)
	now := start.Add(time.Second)
	if s.Sending() || len(s.planPublish(now)) != 0 {
		t.Fatal("messages are sent before the other one has come back")
	}
	s.Published(now, given[1], NotSent, nil)
	if got := s.planPublish(now); len(got) != 1 || !s.Sending() || got[0].Message.Position != 0 {
		t.Fatalf("published %+v, want the first message alone", got)
	}
}

// A message that was not sent is ready again, unless it is a candidate, which is chosen
// separately.
func TestCandidateIsNotReadyAgain(t *testing.T) {
	t.Parallel()
	s := fixed()
	candidate, other := &Message{Position: 1, Topic: "t"}, &Message{Position: 2, Topic: "t"}
	s.attribution.add(candidate)
	s.retry(candidate)
	s.retry(other)
	if m := s.nextReady(); m != other || s.buffer.ready.count != 0 {
		t.Errorf("ready are %+v and %d others, want only the message that is no candidate", m, s.buffer.ready.count)
	}
	if got := s.choose(); got != candidate {
		t.Errorf("chosen is %+v, want the candidate", got)
	}
}

// If each candidate has failed alone, the next is one that failed before another message
// was confirmed, even if a candidate that failed later has failed less often.
func TestCandidateThatFailedBeforeAConfirmIsChosen(t *testing.T) {
	t.Parallel()
	late := &Message{Position: 1, failedAlone: 1, confirmsThen: 6}
	early := &Message{Position: 2, failedAlone: 2, confirmsThen: 5}
	a := attribution{candidates: []*Message{late, early}}
	none := func() *Message { return nil }
	if got := a.choose(6, none); got != early || a.alone != early {
		t.Errorf("chosen is %+v, want the one that failed before the last confirm", got)
	}
	other := &Message{Position: 3}
	early.confirmsThen = 6
	if got := a.choose(6, func() *Message { return other }); got != other || a.alone != other {
		t.Errorf("chosen is %+v, want a message that is no candidate", got)
	}
	if got := a.choose(6, none); got != late || a.alone != late {
		t.Errorf("chosen is %+v, want the one that has failed least often", got)
	}
}

// An episode ends when the topic has accepted a message and has refused none for a
// minute. The first refusal of each episode is an error in the log.
func TestRefusalsAreAnErrorOncePerEpisode(t *testing.T) {
	var r refusals
	start := time.Now()
	if got := r.accept("t"); got != 0 {
		t.Fatalf(`r.accept("t") is %d, want 0: nothing was refused`, got)
	}
	if !r.refuse("t", start) {
		t.Fatal(`r.refuse("t", start) returned false`)
	}
	if !r.refuse("other", start) {
		t.Fatal(`r.refuse("other", start) returned false`)
	}
	if r.refuse("t", start.Add(time.Hour)) {
		t.Fatal("r.refuse returned true: nothing was accepted meanwhile")
	}
	if got := r.accept("t"); got != 2 {
		t.Fatalf(`r.accept("t") is %d, want 2`, got)
	}
	if got := r.accept("t"); got != 0 {
		t.Fatalf(`r.accept("t") is %d, want 0: it was said`, got)
	}
	if r.refuse("t", start.Add(time.Hour+refusalsQuiet-1)) {
		t.Fatal("r.refuse returned true")
	}
	if got := r.accept("t"); got != 0 {
		t.Fatalf(`r.accept("t") is %d, want 0: it was said`, got)
	}
	if !r.refuse("t", start.Add(time.Hour+2*refusalsQuiet)) {
		t.Fatal("r.refuse returned false")
	}
	if got := r.accept("t"); got != 1 {
		t.Fatalf(`r.accept("t") is %d, want 1`, got)
	}

	for i := range 3 * maxRefusals {
		r.refuse(fmt.Sprint(i), start)
		if len(r) > maxRefusals {
			t.Fatalf("len(r) is %d, want at most %d", len(r), maxRefusals)
		}
	}
}

// Trap 107. If the broker refuses all messages of a topic, the refusal counts no attempt,
// and messages of other topics are sent. The topic is tried again with one message.
func TestTrap107_RefusedTopicCountsNoAttempts(t *testing.T) {
	t.Parallel()
	s := fixed()
	for position := range int64(4) {
		topic := "closed"
		if position == 3 {
			topic = "open"
		}
		s.buffer.add(&Message{Position: position, Topic: topic}, false)
	}
	for _, p := range append([]Publish(nil), s.planPublish(start)...) {
		if p.Message.Topic == "closed" {
			s.Published(start, p, TopicUnavailable, errFailed)
		} else {
			s.Published(start, p, NotSent, nil)
		}
	}
	charges, deaths := s.settling.waiting.Charges, s.settling.waiting.Deaths
	if len(charges) != 3 || len(deaths) != 0 {
		t.Fatalf("%d messages wait and %d are dead, want 3 and 0", len(charges), len(deaths))
	}
	for _, c := range charges {
		if c.Attempts != 0 || c.Cause != Refused || c.Delay <= 0 {
			t.Errorf("charge is %+v, want a delay without an attempt", c)
		}
	}
	closed := s.topics.get("closed")
	if !closed.stalled || !closed.refused || len(s.notices) != 1 || s.notices[0].Kind != TopicRefused {
		t.Errorf("the topic is %+v, and the notices are %+v", closed, s.notices)
	}
	got := s.planPublish(start.Add(time.Second))
	if len(got) != 1 || got[0].Message.Topic != "open" {
		t.Fatalf("published %+v, want the message of the other topic", got)
	}
	s.Published(start.Add(time.Second), got[0], Confirmed, nil)

	now := start.Add(time.Hour)
	s.topics.check = time.Time{}
	s.watchTopics(now)
	for position := range int64(2) {
		s.buffer.add(&Message{Position: 10 + position, Topic: "closed"}, false)
	}
	if got := s.planPublish(now); len(got) != 1 || !got[0].Message.candidate {
		t.Errorf("published %+v, want one message alone", got)
	}
}

// Every answer of the broker, and not only a confirm, ends an outage.
func TestEachAnswerEndsAnOutage(t *testing.T) {
	same := func(d time.Duration) time.Duration { return d }
	for _, outcome := range []Outcome{Confirmed, Refused, Unacceptable} {
		s := New(Config{
			BatchSize: 10, Window: 10, BufferBytes: 1 << 20, PollMin: time.Second, PollMax: time.Second,
			StallTimeout: time.Hour, CloseTimeout: time.Second, RescanEvery: time.Hour,
			Policy: policyOf, Pause: func(int) time.Duration { return time.Second }, Jitter: same,
		})
		s.SetSlots([]int64{0})
		now := time.Now()
		s.RowsRead(now, s.Step(now).Read, []*Message{{Position: 1, ID: "m", Topic: "t"}}, Reach{Highest: 1, Covered: Everything})
		publish := s.Step(now).Publish
		if len(publish) != 1 {
			t.Fatalf("len(publish) is %d, want 1: %+v", len(publish), publish)
		}
		s.Published(now, publish[0], Unavailable, errors.New("the broker is away"))
		c := s.Step(now)
		if len(c.Publish) != 0 {
			t.Fatalf("c.Publish is %+v, want none", c.Publish)
		}
		if len(c.Notices) != 1 {
			t.Fatalf("%d notices, want 1: %+v", len(c.Notices), c.Notices)
		}
		if c.Notices[0].Kind != WorkFailed {
			t.Fatalf("c.Notices[0].Kind is %d, want %d", c.Notices[0].Kind, WorkFailed)
		}

		now = now.Add(time.Minute)
		publish = s.Step(now).Publish
		if len(publish) != 1 {
			t.Fatalf("len(publish) is %d, want 1: %+v", len(publish), publish)
		}
		s.Published(now, publish[0], outcome, errors.New("an answer"))
		succeeded := func(n Notice) bool { return reflect.DeepEqual(n, Notice{Kind: WorkSucceeded, Work: Publishing}) }
		if notices := s.Step(now).Notices; !slices.ContainsFunc(notices, succeeded) {
			t.Fatalf("%v: notices are %+v, want one that publishing succeeded", outcome, notices)
		}
	}
}

// The pause after a failure grows with the number of failures. Step is called when it
// ends.
func TestPauseAfterAFailureEndsWithAStep(t *testing.T) {
	t.Parallel()
	s := fixed()
	var o outage
	for failures := range 3 {
		s.fails(&o, Reading, errFailed, start)
		end := start.Add(time.Duration(failures+1) * time.Second)
		s.wakeAt = start.Add(time.Hour)
		if !s.pausing(&o, end.Add(-1)) || !s.wakeAt.Equal(end) {
			t.Errorf("after %d failures it wakes up after %v, want %v", failures+1, s.wakeAt.Sub(start), end.Sub(start))
		}
		s.wakeAt = start.Add(time.Hour)
		if s.pausing(&o, end) || !s.wakeAt.Equal(start.Add(time.Hour)) {
			t.Errorf("after %d failures the pause does not end", failures+1)
		}
	}
	if !s.worked(&o, Reading) || s.worked(&o, Reading) || o != (outage{}) || len(s.notices) != 4 {
		t.Errorf("got %+v and the notices %+v, want one success after three failures", o, s.notices)
	}
}
