package dispatch

import (
	"errors"
	"slices"
	"strconv"
	"testing"
	"time"
)

// A confirmed message waits for other confirms only while more confirms can arrive, and
// nothing is urgent.
func TestConfirmedMessagesWaitShortlyForOthers(t *testing.T) {
	t.Parallel()
	m := &Message{Position: 1}
	for name, c := range map[string]struct {
		change func(s *Scheduler)
		waits  bool
	}{
		"others are in flight":    {func(*Scheduler) {}, true},
		"nearly half a batch":     {func(s *Scheduler) { s.settling.waiting.Confirmed = make([]*Message, 7) }, true},
		"half a batch":            {func(s *Scheduler) { s.settling.waiting.Confirmed = make([]*Message, 8) }, false},
		"nothing is in flight":    {func(s *Scheduler) { s.inFlight = 0 }, false},
		"a key is blocked":        {func(s *Scheduler) { s.settling.urgent = true }, false},
		"the forwarder stops":     {func(s *Scheduler) { s.stopping = true }, false},
		"slots were lost":         {func(s *Scheduler) { s.buffer.orphans = 1 }, false},
		"a message was refused":   {func(s *Scheduler) { s.settling.waiting.Charges = []Charge{{Message: m}} }, false},
		"a message was given up":  {func(s *Scheduler) { s.settling.waiting.Deaths = []Death{{Message: m}} }, false},
		"the last one has failed": {func(s *Scheduler) { s.settling.outage.until = start.Add(gather) }, true},
	} {
		s := fixed()
		s.inFlight = 1
		s.settling.addConfirmed(m, start)
		s.settling.addConfirmed(m, start.Add(time.Millisecond))
		c.change(s)
		due := start.Add(gather)
		s.wakeAt = start.Add(time.Minute)
		batch := s.planSettle(due.Add(-1))
		if c.waits != (batch == nil) || c.waits && !s.wakeAt.Equal(due) {
			t.Errorf("%s: settlement %v, wakes up after %v", name, batch, s.wakeAt.Sub(start))
		}
		if batch == nil {
			batch = s.planSettle(due)
		}
		if batch == nil {
			t.Errorf("%s: the messages are not recorded after %v", name, gather)
		}
		if s.planSettle(due.Add(time.Hour)) != nil {
			t.Errorf("%s: two settlements at the same time", name)
		}
	}
}

// Dead letters are moved one by one, so one settlement contains few of them. Later
// settlements contain the rest.
func TestDeathsAreRecordedInParts(t *testing.T) {
	t.Parallel()
	s := fixed()
	for position := range int64(205) {
		m := &Message{Position: position}
		s.settling.waiting.Deaths = append(s.settling.waiting.Deaths, Death{Message: m})
	}
	next := int64(0)
	for _, want := range []int{100, 100, 5} {
		batch := s.planSettle(start)
		if batch == nil || len(batch.Deaths) != want {
			t.Fatalf("got %+v, want %d deaths", batch, want)
		}
		for _, d := range batch.Deaths {
			if d.Message.Position != next {
				t.Fatalf("position %d, want %d", d.Message.Position, next)
			}
			next++
		}
		s.Settled(start, batch, Settled{Deaths: want})
	}
	if s.planSettle(start) != nil {
		t.Fatal("an empty settlement")
	}
}

// If a part of a settlement fails, the next settlement records it, in smaller batches,
// and before later outcomes.
func TestWhatWasNotRecordedIsRecordedAgain(t *testing.T) {
	t.Parallel()
	s := fixed()
	var all [10]*Message
	for i := range all {
		all[i] = &Message{Position: int64(i), decided: true}
		s.buffer.messages[int64(i)] = all[i]
	}
	s.settling.waiting = Settlement{
		Confirmed: slices.Clone(all[:4]), Charges: []Charge{{Message: all[4]}, {Message: all[5]}}, Deaths: []Death{
			{Message: all[6]},
			{Message: all[7]},
		},
	}
	batch := s.planSettle(start)
	if got := s.Unrecorded(); got != 4 {
		t.Fatalf("s.Unrecorded is %d, want 4", got)
	}
	s.settling.addConfirmed(all[8], start)
	if got := s.Unrecorded(); got != 5 {
		t.Fatalf("s.Unrecorded is %d, want 5", got)
	}
	s.Settled(start, batch, Settled{Deaths: 1, Err: errFailed})
	if got := s.Unrecorded(); got != 5 {
		t.Fatalf("s.Unrecorded is %d, want 5", got)
	}
	if s.planSettle(start.Add(time.Second-1)) != nil {
		t.Fatal("it does not pause after the failure")
	}
	now := start.Add(time.Second)
	batch = s.planSettle(now)
	if len(batch.Confirmed) != 2 || batch.Confirmed[0] != all[0] || len(batch.Charges) != 1 || batch.Charges[0].Message != all[4] ||
		len(batch.Deaths) != 1 || batch.Deaths[0].Message != all[7] {
		t.Fatalf("got %+v", batch)
	}
	s.reading.rescan = start.Add(time.Hour)
	s.Settled(now, batch, Settled{Confirmed: true, Charges: true, Deaths: 1})
	if !s.reading.rescan.IsZero() {
		t.Fatal("after the failure nothing is read from the start, although another server may answer now")
	}
	batch = s.planSettle(now)
	if len(batch.Confirmed) != 3 || batch.Confirmed[2] != all[8] || len(batch.Charges) != 1 || len(batch.Deaths) != 0 {
		t.Fatalf("got %+v", batch)
	}
	s.reading.rescan = start.Add(time.Hour)
	s.Settled(now, batch, Settled{Confirmed: true, Charges: true})
	if s.reading.rescan.IsZero() {
		t.Fatal("after a success that followed another one, the outbox is read from the start")
	}
	if len(s.buffer.messages) != 1 || s.Unrecorded() != 0 {
		t.Fatalf("%d messages in memory, %d not recorded", len(s.buffer.messages), s.Unrecorded())
	}
}

// Rows that a settlement did not find are read again, from the lowest of their
// positions on.
func TestVanishedRowsAreReadAgain(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		charged, died []int64
		low           int64
	}{{[]int64{70, 30}, []int64{50}, 29}, {[]int64{60}, []int64{90, 40}, 39}, {nil, []int64{20}, 19}, {nil, nil, 80}} {
		s := fixed()
		s.cursor.low, s.buffer.low = 80, 80
		batch := &Settlement{}
		for _, position := range c.charged {
			batch.Charges = append(batch.Charges, Charge{Message: &Message{Position: position}})
		}
		for _, position := range c.died {
			batch.Deaths = append(batch.Deaths, Death{Message: &Message{Position: position}})
		}
		s.Settled(start, batch, Settled{Vanished: true, Charges: true, Deaths: len(c.died)})
		if s.cursor.low != c.low || s.buffer.low != c.low {
			t.Errorf("%v and %v vanished: read above %d and %d, want %d", c.charged, c.died, s.cursor.low, s.buffer.low, c.low)
		}
	}
}

// One topic uses at most three times the free part of the window, so that other topics
// have room.
func TestTopicsShareTheWindow(t *testing.T) {
	t.Parallel()
	s := fixed()
	position := int64(0)
	for _, topic := range []string{"a", "b", "c"} {
		for range 20 {
			position++
			s.buffer.add(&Message{Position: position, ID: strconv.FormatInt(position, 10), Topic: topic}, false)
		}
	}
	got := map[string]int{}
	for _, p := range s.planPublish(start) {
		got[p.Message.Topic]++
	}
	if got["a"] != 12 || got["b"] != 3 || got["c"] != 1 {
		t.Fatalf("in flight are %v, want 12, 3 and 1", got)
	}
	if s.inFlight != 16 || s.topicShare() != 1 {
		t.Fatalf("%d in flight, and a topic may have %d", s.inFlight, s.topicShare())
	}
}

// Messages of stalled topics do not use up the window, because the broker may never
// answer for them. But the number of messages in flight never exceeds the window.
func TestWindowGrowsByStalledMessages(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ stalled, failures, candidates, want int }{
		{0, 0, 0, 16}, {5, 0, 0, 16}, {0, 1, 0, 1}, {5, 1, 0, 6}, {16, 1, 0, 16}, {0, 0, 1, 1}, {5, 0, 1, 6}, {16, 0, 1, 16},
	} {
		s := fixed()
		s.publishOutage.failures = c.failures
		s.attribution.candidates = make([]*Message, c.candidates)
		s.topics.get("silent").inFlight, s.topics.get("silent").stalled = c.stalled, true
		s.topics.get("fine").inFlight = 7
		if got := s.window(start); got != c.want {
			t.Errorf("%+v: the window is %d", c, got)
		}
	}
	s := fixed()
	s.lookahead.round.begun, s.lookahead.found = true, start
	s.topics.get("silent").inFlight, s.topics.get("silent").stalled = 5, true
	for after, want := range map[time.Duration]int{0: 2 + 5, 5 * time.Second: 2 + 5, 5*time.Second + 1: 16} {
		if got := s.window(start.Add(after)); got != want {
			t.Errorf("%v after a lookahead has found a message, the window is %d, want %d", after, got, want)
		}
	}
	s.config.Window = 17
	if got := s.crowdedWindow(start); got != 3 {
		t.Errorf("s.crowdedWindow is %d, want 3", got)
	}
}

// After Stop, the Scheduler waits for confirms, and then the same time again for
// settlements.
func TestStopWaitsForConfirmsAndThenForSettlements(t *testing.T) {
	t.Parallel()
	s := fixed()
	s.inFlight = 1
	s.Stop(start)
	steps := []struct {
		after            time.Duration
		change           func()
		drained, expired bool
	}{
		{0, func() {}, false, false},
		{time.Second - 1, func() {}, false, false},
		{time.Second, func() { s.settling.busy = true }, false, false},
		{time.Second, func() { s.settling.busy, s.reading.busy = false, true }, false, false},
		{time.Second, func() { s.reading.busy, s.settling.waiting.Confirmed = false, make([]*Message, 1) }, false, false},
		{time.Second, func() { s.settling.waiting.Confirmed = nil }, true, false},
		{2*time.Second - 1, func() {}, true, false},
		{2 * time.Second, func() {}, true, true},
	}
	for i, c := range steps {
		c.change()
		now := start.Add(c.after)
		s.wakeAt = start.Add(time.Minute)
		if drained, expired := s.drain(now); drained != c.drained || expired != c.expired {
			t.Errorf("step %d: drained is %t and expired is %t, want %t and %t", i, drained, expired, c.drained, c.expired)
		}
		want := start.Add(time.Second)
		if c.after >= time.Second {
			want = start.Add(2 * time.Second)
		}
		if !s.wakeAt.Equal(want) {
			t.Errorf("step %d: it wakes up after %v, want %v", i, s.wakeAt.Sub(start), want.Sub(start))
		}
	}
	if got := s.Returned(); got != 1 {
		t.Errorf("s.Returned is %d, want 1", got)
	}
	idle := fixed()
	idle.Stop(start)
	if drained, expired := idle.drain(start); !drained || expired {
		t.Errorf("without work: drained is %t and expired is %t", drained, expired)
	}
	if !idle.Stopping() || idle.Sending() {
		t.Error("after Stop, messages are sent")
	}
}

// A Scheduler without work wakes up once a minute.
func TestIdleSchedulerWakesUpOnceAMinute(t *testing.T) {
	t.Parallel()
	s := New(fixed().config)
	if c := s.Step(start); c.Read != nil || c.Settle != nil || len(c.Publish) > 0 || !c.WakeAt.Equal(start.Add(time.Minute)) {
		t.Fatalf("got %+v", c)
	}
}

// After an outage of the database another server may answer, so the outbox is read from
// the start.
func TestReadAfterAnOutageIsFromTheStart(t *testing.T) {
	t.Parallel()
	for _, failed := range []bool{true, false} {
		s := fixed()
		s.reading.rescan = start.Add(time.Hour)
		q := &keyQueue{key: "k", refillWanted: true, refilling: true}
		s.buffer.queues["k"] = q
		read := s.planRead(start)
		read.refills = []queueEpoch{{q, 0}}
		if failed {
			s.ReadFailed(start, read, errFailed)
			if s.reading.busy || q.refilling || !q.refillWanted || len(s.buffer.refills) != 1 || s.planRead(start) != nil {
				t.Fatalf("after a failure: got %+v", s.reading)
			}
			read = s.planRead(start.Add(time.Second))
		}
		s.RowsRead(start, read, nil, Reach{Covered: Everything})
		if got := s.reading.rescan.IsZero(); got != failed {
			t.Errorf("an outage: %t; a read from the start: %t", failed, got)
		}
	}
	s := fixed()
	read := s.planRead(start)
	s.Stop(start)
	if s.ReadFailed(start, read, errFailed); s.reading.outage.failures != 0 || len(s.notices) != 0 {
		t.Errorf("a failure after Stop is reported: %+v", s.notices)
	}
}

// Slots with orphans are listed once each, in order.
func TestOrphanSlotsAreSorted(t *testing.T) {
	t.Parallel()
	s := fixed()
	for position := range int64(40) {
		s.buffer.add(&Message{Position: position, Slot: position % 20, Topic: "t"}, false)
	}
	for _, p := range s.planPublish(start) {
		if p.Message.Slot%2 == 0 {
			s.Published(start, p, Confirmed, nil)
		}
	}
	if got := s.OrphanSlots(); len(got) != 0 {
		t.Fatalf("got %v before slots are lost", got)
	}
	s.LoseSlots([]int64{0, 1, 2, 3, 4, 5, 6, 15})
	if got, want := s.OrphanSlots(), []int64{0, 1, 2, 3, 4, 5, 6}; !slices.Equal(got, want) || s.Orphans() != 7 {
		t.Fatalf("got %v, want %v; %d orphans", got, want, s.Orphans())
	}
}

// While nothing arrives, the pauses between reads grow. A hint makes the pauses short
// again, even if the next read finds nothing, because the transaction may not be
// visible yet.
func TestPausesBetweenReadsGrowUntilAHint(t *testing.T) {
	s := New(Config{
		BatchSize: 10, Window: 2, BufferBytes: 1 << 20, PollMin: time.Second, PollMax: time.Minute,
		StallTimeout: time.Hour, CloseTimeout: time.Second, RescanEvery: 24 * time.Hour,
		Policy: policyOf, Pause: func(int) time.Duration { return time.Second },
		Jitter: func(d time.Duration) time.Duration { return d },
	})
	s.SetSlots([]int64{0})
	now := time.Now()
	sweep := func() {
		t.Helper()
		read := s.Step(now).Read
		if read == nil {
			t.Fatal("nothing is read")
		}
		s.RowsRead(now, read, nil, Reach{Covered: Everything})
	}
	pause := func() time.Duration {
		t.Helper()
		c := s.Step(now)
		if c.Read != nil {
			t.Fatal("it reads")
		}
		return c.WakeAt.Sub(now)
	}
	rows := []*Message{{Position: 1, ID: "a", Topic: "t"}}
	s.RowsRead(now, s.Step(now).Read, rows, Reach{Highest: 1, Covered: Everything})
	if got := pause(); got != time.Second {
		t.Errorf("after a row was found, the pause is %v", got)
	}

	for _, want := range []time.Duration{10 * time.Second, time.Minute} {
		now = now.Add(4 * want)
		sweep()
		if got := pause(); got < want || got > time.Minute {
			t.Errorf("%v after the last row, the pause is %v", 4*want, got)
		}
	}

	s.Hint(now)
	now = now.Add(time.Second)
	sweep()
	if got := pause(); got != time.Second {
		t.Errorf("after the hint, the pause is %v", got)
	}
}

// After Recall, messages that were not given to the publisher yet return to the
// Scheduler. Nothing else is sent until all of them have returned. Then sending continues
// with these messages.
func TestRecalledMessagesAreSentAgain(t *testing.T) {
	s := New(Config{
		BatchSize: 10, Window: 2, BufferBytes: 1 << 20, PollMin: time.Second, PollMax: time.Second,
		StallTimeout: time.Hour, CloseTimeout: time.Second, RescanEvery: time.Hour,
		Policy: policyOf, Pause: func(int) time.Duration { return time.Second },
		Jitter: func(d time.Duration) time.Duration { return d },
	})
	s.SetSlots([]int64{0})
	now := time.Now()
	rows := []*Message{{Position: 1, ID: "a", Topic: "t"}, {Position: 2, ID: "b", Topic: "t"}, {Position: 3, ID: "c", Topic: "t"}}
	s.RowsRead(now, s.Step(now).Read, rows, Reach{Highest: 3, Covered: Everything})
	given := append([]Publish(nil), s.Step(now).Publish...)
	if len(given) != 2 {
		t.Fatalf("len(given) is %d, want 2: %+v", len(given), given)
	}
	if !s.Sending() {
		t.Fatal("s.Sending returned false")
	}
	s.Recall()
	if s.Sending() {
		t.Fatal("s.Sending returned true")
	}
	s.Published(now, given[0], NotSent, nil)
	if got := s.Step(now).Publish; len(got) != 0 {
		t.Fatalf("s.Step(now).Publish is %+v, want none: the second has not come back", got)
	}
	if s.Sending() {
		t.Fatal("s.Sending returned true")
	}
	s.Published(now, given[1], NotSent, errors.New("recalled"))
	again := s.Step(now).Publish
	if len(again) != 2 {
		t.Fatalf("len(again) is %d, want 2: %+v", len(again), again)
	}
	if !s.Sending() {
		t.Fatal("s.Sending returned false")
	}
}
