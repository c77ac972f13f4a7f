package dispatch

import (
	"slices"
	"strconv"
	"testing"
	"time"
)

// fixed returns a Scheduler that owns a slot, and whose pauses are not random.
func fixed() *Scheduler {
	s := New(Config{
		BatchSize: 16, Window: 16, BufferBytes: 1000, PollMin: 5 * time.Millisecond, PollMax: time.Second,
		StallTimeout: 8 * time.Second, CloseTimeout: time.Second, RescanEvery: time.Minute, Policy: policyOf,
		Pause:  func(failures int) time.Duration { return time.Duration(failures) * time.Second },
		Jitter: func(d time.Duration) time.Duration { return d },
	})
	s.SetSlots([]int64{0})
	return s
}

// remember puts messages into memory. Their outcomes are known, but not recorded yet.
func remember(s *Scheduler, messages int) {
	for position := range int64(messages) {
		s.buffer.messages[1+position] = &Message{Position: 1 + position, decided: true}
	}
}

// A read must be worth its cost, and its rows must fit into memory. Nothing is read if
// there is room for less than a quarter of a batch, or if enough messages wait to be
// sent.
func TestReadIsAsLargeAsTheRoomInMemory(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change       func(s *Scheduler)
		limit, bytes int // 0 if nothing is read
	}{
		"empty":                          {func(*Scheduler) {}, 16, 1000},
		"room for more than a quarter":   {func(s *Scheduler) { remember(s, 64-5) }, 5, 1000},
		"room for a quarter of a batch":  {func(s *Scheduler) { remember(s, 64-4) }, 4, 1000},
		"room for less than a quarter":   {func(s *Scheduler) { remember(s, 64-3) }, 0, 0},
		"room for a byte":                {func(s *Scheduler) { s.buffer.bytes = 999 }, 16, 1},
		"room for no byte":               {func(s *Scheduler) { s.buffer.bytes = 1000 }, 0, 0},
		"a quarter is for lookaheads":    {func(s *Scheduler) { s.config.LookaheadRows = 1 }, 16, 750},
		"half a batch waits to be sent":  {func(s *Scheduler) { s.buffer.ready.count = 8 }, 16, 1000},
		"more than half a batch waits":   {func(s *Scheduler) { s.buffer.ready.count = 9 }, 0, 0},
		"large rows":                     {func(s *Scheduler) { s.reading.rowSize = 300 }, 3, 1000},
		"rows of a byte":                 {func(s *Scheduler) { s.reading.rowSize = 1 }, 16, 1000},
		"rows that are larger than that": {func(s *Scheduler) { s.reading.rowSize = 2000 }, 1, 1000},
		"the last read has failed":       {func(s *Scheduler) { s.reading.batchLimit.Did(false) }, 8, 500},
		"another read is under way":      {func(s *Scheduler) { s.reading.busy = true }, 0, 0},
		"no slots":                       {func(s *Scheduler) { s.slots = nil }, 0, 0},
		"stopping":                       {func(s *Scheduler) { s.stopping = true }, 0, 0},
		"pausing after a failure":        {func(s *Scheduler) { s.reading.outage.until = start.Add(1) }, 0, 0},
	} {
		s := fixed()
		c.change(s)
		read := s.planRead(start)
		switch {
		case read == nil && c.limit > 0:
			t.Errorf("%s: nothing is read", name)
		case read != nil && (read.Limit != c.limit || read.Bytes != c.bytes):
			t.Errorf("%s: %d rows and %d bytes are read, want %d and %d", name, read.Limit, read.Bytes, c.limit, c.bytes)
		case read != nil && !s.reading.busy:
			t.Errorf("%s: the read is not under way", name)
		}
	}
}

// The size of a row is estimated as the average of the rows of the last read.
func TestSizeOfARowIsAnAverage(t *testing.T) {
	t.Parallel()
	s := fixed()
	rows := []*Message{
		{Position: 1, Topic: "t", Payload: make([]byte, 100), Metadata: make([]byte, 100)},
		{Position: 2, Topic: "t", Payload: make([]byte, 40)},
	}
	s.RowsRead(start, s.planRead(start), rows, Reach{Highest: 2, Covered: Everything})
	if s.reading.rowSize != 120 {
		t.Fatalf("s.reading.rowSize is %d, want 120", s.reading.rowSize)
	}
	s.RowsRead(start, &Read{}, nil, Reach{Covered: Everything})
	s.RowsRead(start, &Read{Lookahead: true}, []*Message{{Position: 3, Topic: "t"}}, Reach{Covered: 3})
	if s.reading.rowSize != 120 {
		t.Fatalf("s.reading.rowSize is %d, want 120: no sweep has found rows", s.reading.rowSize)
	}
}

// After a hint, a sweep begins soon, but sweeps take at most half of the time.
func TestSweepAfterAHintWaitsTwiceAsLongAsTheLastTook(t *testing.T) {
	t.Parallel()
	for took, wait := range map[time.Duration]time.Duration{
		0: 0, time.Millisecond: 2 * time.Millisecond, 3 * time.Millisecond: 5 * time.Millisecond,
	} {
		s := fixed()
		s.reading.next, s.reading.rescan = start.Add(time.Hour), start.Add(time.Hour)
		s.reading.began, s.reading.took = start, took
		if read := s.planRead(start.Add(time.Minute)); read != nil {
			t.Fatal("a sweep begins without a hint")
		}
		s.Hint(start)
		due := start.Add(wait)
		s.wakeAt = start.Add(time.Minute)
		if read := s.planRead(due.Add(-1)); read != nil || !s.wakeAt.Equal(due) {
			t.Fatalf("the last sweep took %v: sweep %v, wakes up after %v, want %v", took, read, s.wakeAt.Sub(start), wait)
		}
		if read := s.planRead(due); read == nil || s.reading.hinted || !s.reading.began.Equal(due) {
			t.Fatalf("the last sweep took %v: no sweep after %v", took, wait)
		}
	}
}

// After a sweep that has not reached the end, the next begins immediately.
func TestSweepContinuesUntilTheEnd(t *testing.T) {
	t.Parallel()
	s := fixed()
	at := Reach{Highest: 5, Covered: 5}
	for range 3 {
		s.RowsRead(start.Add(time.Millisecond), s.planRead(start), nil, at)
		if want := start.Add(time.Millisecond); !s.reading.next.Equal(want) || !s.reading.found.Equal(want) {
			t.Fatalf("the next sweep is due %v after this one", s.reading.next.Sub(want))
		}
		if s.reading.took != time.Millisecond {
			t.Fatalf("s.reading.took is %v, want 1ms", s.reading.took)
		}
		s.reading.next = time.Time{}
	}
}

// Sweeps and refills alternate if both are due, so that neither holds up the other.
func TestSweepsAndRefillsAlternate(t *testing.T) {
	t.Parallel()
	s := fixed()
	s.reading.rescan = start.Add(time.Hour)
	q := &keyQueue{key: "k", excluded: true, refillFrom: 7}
	s.buffer.queues["k"] = q
	remember(s, 9) // at the positions 1 to 9
	for i := range 6 {
		s.buffer.wantRefill(q)
		read := s.planRead(start)
		if read == nil || read.Refill != (i%2 == 0) {
			t.Fatalf("read %d is %+v, want refills and sweeps by turns", i, read)
		}
		if read.Refill {
			slices.Sort(read.Known)
			if read.From != 7 || !slices.Equal(read.Known, []int64{8, 9}) || !slices.Equal(read.Keys, []string{"k"}) {
				t.Fatalf("the refill reads %q above %d, and not %v", read.Keys, read.From, read.Known)
			}
			q.refillWanted = false
		}
		s.endRead(read, true)
	}
	s.reading.next = start.Add(time.Hour)
	for range 2 { // no sweep is due
		q.refillWanted = false
		s.buffer.wantRefill(q)
		read := s.planRead(start)
		if read == nil || !read.Refill {
			t.Fatalf("got %+v, want a refill", read)
		}
		s.endRead(read, true)
	}
}

// With too many key queues in memory, the Scheduler plans only refills, because a sweep
// would add queues.
func TestSweepsWaitForFewerKeyQueues(t *testing.T) {
	t.Parallel()
	s := fixed()
	s.reading.rescan = start.Add(2 * time.Hour)
	for i := range 20_000 {
		key := strconv.Itoa(i)
		s.buffer.queues[key] = &keyQueue{key: key, excluded: true}
	}
	read := s.planRead(start)
	if read == nil || len(read.Keys) != 20_000 {
		t.Fatal("no sweep although there are not too many queues")
	}
	s.endRead(read, true)
	q := &keyQueue{key: "one more"}
	s.buffer.queues[q.key] = q
	s.wakeAt = start.Add(time.Minute)
	if read := s.planRead(start.Add(time.Hour)); read != nil || !s.wakeAt.Equal(start.Add(time.Minute)) {
		t.Fatalf("reads %t, wakes up after %v, want neither", read != nil, s.wakeAt.Sub(start))
	}
	s.buffer.wantRefill(q)
	if read := s.planRead(start); read == nil || !read.Refill {
		t.Fatalf("got %+v, want a refill", read)
	}
}

// One refill reads up to 100 keys, and reads each key up to the limit of its queue.
func TestRefillIsLimited(t *testing.T) {
	t.Parallel()
	s := fixed()
	s.config.BatchSize, s.buffer.limit = 10_000, 40_000
	for i := range 101 {
		q := &keyQueue{key: strconv.Itoa(i), excluded: true, refillFrom: int64(1000 - i)}
		s.buffer.queues[q.key] = q
		s.buffer.wantRefill(q)
	}
	for _, c := range []struct {
		keys, limit int
		from        int64
	}{{100, 10_000, 901}, {1, 128, 900}} {
		read := s.planRefill(10_000, 500)
		if read == nil || len(read.Keys) != c.keys || read.Limit != c.limit || read.From != c.from || read.Bytes != 500 {
			t.Fatalf("got %+v, want %+v", read, c)
		}
	}
	if read := s.planRefill(10_000, 500); read != nil {
		t.Fatalf("got %+v, want none", read)
	}
	for limit, want := range map[int]int{0: 4, 64: 4, 160: 10, 2048: 128, 4096: 128} {
		if got := (&buffer{limit: limit}).queueLimit(); got != want {
			t.Errorf("with room for %d messages, %d of a key may wait, want %d", limit, got, want)
		}
	}
}

// A sweep leaves out those messages in memory that it would otherwise find again:
// messages above the cursor, and messages that may be due.
func TestSweepLeavesOutMessagesInMemory(t *testing.T) {
	t.Parallel()
	s := fixed()
	s.reading.rescan = start.Add(time.Minute)
	s.cursor.low = 10
	s.buffer.messages = map[int64]*Message{
		8: {Position: 8}, 9: {Position: 9, Due: true}, 10: {Position: 10, decided: true}, 11: {Position: 11}, 7: {Position: 7},
	}
	s.wakeAt = start.Add(time.Hour)
	read := s.planRead(start)
	slices.Sort(read.Known)
	if read.From != 10 || !slices.Equal(read.Known, []int64{9, 10, 11}) || read.Tidy || !read.Poll {
		t.Fatalf("got %+v", read)
	}
	if !s.wakeAt.Equal(start.Add(time.Minute)) {
		t.Fatalf("it wakes up after %v, want a minute: then it reads from the start", s.wakeAt.Sub(start))
	}
	s.endRead(read, true)
	read = s.planRead(start.Add(time.Minute))
	if read.From != 0 || len(read.Known) != 5 || !read.Tidy || read.Poll || !s.reading.rescan.Equal(start.Add(2*time.Minute)) {
		t.Fatalf("after a minute: got %+v, want a read from the start", read)
	}
	s.endRead(read, true)
	s.Hint(start.Add(time.Minute))
	if read = s.planRead(start.Add(time.Minute + time.Second)); read == nil || read.Poll {
		t.Fatalf("after a hint: got %+v, want a read that is no poll", read)
	}
}

// A read from the start of the outbox finds changes anywhere, so refills then also begin
// at the start. A key without messages in memory may have rows again.
func TestRefillsBeginAtTheStartAfterARescan(t *testing.T) {
	t.Parallel()
	s := fixed()
	empty := &keyQueue{key: "empty", excluded: true, refillFrom: 70}
	busy := &keyQueue{key: "busy", excluded: true, refillFrom: 70, head: &Message{Position: 80, Key: "busy"}}
	s.buffer.queues = map[string]*keyQueue{"empty": empty, "busy": busy}
	if read := s.planRead(start); read == nil || !read.Tidy {
		t.Fatalf("got %+v, want a read from the start", read)
	}
	if empty.refillFrom != 0 || busy.refillFrom != 0 || !empty.refillWanted || busy.refillWanted || len(s.buffer.refills) != 1 {
		t.Errorf("got %+v and %+v", empty, busy)
	}
}

// A refill adds no row of a key whose queue has changed since the refill began, and no row
// that waits for a paused message.
func TestRefillAddsRowsOfUnchangedKeys(t *testing.T) {
	t.Parallel()
	s := fixed()
	s.buffer.low = 50
	read := &Read{Refill: true}
	queues := map[string]*keyQueue{}
	for _, key := range []string{"kept", "changed", "held", "held later"} {
		q := &keyQueue{key: key, excluded: true, refillFrom: 30, refillWanted: true}
		queues[key], s.buffer.queues[key] = q, q
		read.refills = append(read.refills, queueEpoch{q, q.epoch})
	}
	queues["changed"].epoch++
	s.paused.hold("held", 30)
	s.paused.hold("held later", 70)
	s.addRefill(read, []*Message{
		{Position: 40, Key: "kept", Topic: "t"}, {Position: 41, Key: "changed", Topic: "t"}, {Position: 42, Key: "held", Topic: "t"},
	}, Reach{Highest: 42, Covered: 60})
	if len(s.buffer.messages) != 1 || s.buffer.messages[40] == nil || s.cursor.seen != 42 {
		t.Errorf("in memory are %v, want only the row at 40; %d is seen", s.buffer.messages, s.cursor.seen)
	}
	if q := queues["kept"]; q.refillFrom != 50 || !q.refillWanted || len(s.buffer.refills) != 2 || s.buffer.queues["kept"] != q {
		t.Errorf("the rest of the key is not wanted: %+v", q)
	}
	if q := queues["changed"]; q.refillFrom != 30 || s.buffer.queues["changed"] != q {
		t.Errorf("the result of an old refill is used: %+v", q)
	}
	if s.buffer.queues["held"] != nil {
		t.Error("a key whose messages all wait for the end of a pause is still in memory")
	}
	if q := queues["held later"]; s.buffer.queues["held later"] != q || !q.excluded || !q.refillWanted {
		t.Errorf("sweeps may overtake messages of a key that the refill has not reached: %+v", q)
	}
}

// After a refill that has read all rows of a key, sweeps read the new rows of the key
// again. If there are rows above the covered position, only the next refill reads them.
func TestRefillOfAllRowsEndsTheExclusionOfAKey(t *testing.T) {
	t.Parallel()
	s := fixed()
	for covered, excluded := range map[int64]bool{60: true, Everything: false} {
		q := &keyQueue{key: "k", excluded: true, refillWanted: true, head: &Message{Position: 40, Key: "k"}}
		s.buffer.queues["k"] = q
		s.buffer.refilled(q, covered)
		if q.excluded != excluded || q.refillWanted != excluded {
			t.Errorf("covered up to %d: got %+v, want excluded and refillWanted to be %v", covered, q, excluded)
		}
	}
}
