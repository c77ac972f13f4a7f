package dispatch

import (
	"container/heap"
	"slices"
	"strconv"
	"testing"
	"time"
)

// backlog returns a Scheduler for which a lookahead is due: sweeps have stopped at their
// limit for as many rows as are kept in memory, and one group is long.
func backlog() *Scheduler {
	s := fixed()
	s.config.LookaheadRows = 10
	s.lookahead.full = 4
	s.reading.rescan = start.Add(time.Hour)
	s.buffer.groups[Group{"t", "many"}] = 2
	s.cursor.low = 7
	s.buffer.messages = map[int64]*Message{6: {Position: 6}, 7: {Position: 7}, 8: {Position: 8}}
	return s
}

// A lookahead is worth its cost only behind a long backlog of a group that is long.
func TestLookaheadLooksOnlyBehindABacklog(t *testing.T) {
	t.Parallel()
	queues := func(n int) func(s *Scheduler) {
		return func(s *Scheduler) {
			for i := range n {
				s.buffer.queues[strconv.Itoa(i)] = &keyQueue{}
			}
		}
	}
	for name, c := range map[string]struct {
		change       func(s *Scheduler)
		limit, bytes int // 0 if there is no lookahead
	}{
		"a backlog":                     {func(*Scheduler) {}, 16, 250},
		"none is wanted":                {func(s *Scheduler) { s.config.LookaheadRows = 0 }, 0, 0},
		"a short backlog":               {func(s *Scheduler) { s.lookahead.full = 3 }, 0, 0},
		"many key queues":               {queues(20_000), 16, 250},
		"too many key queues":           {queues(20_001), 0, 0},
		"a sweep from the start is due": {func(s *Scheduler) { s.reading.rescan = start }, 0, 0},
		"not due":                       {func(s *Scheduler) { s.lookahead.next = start.Add(1) }, 0, 0},
		"due now":                       {func(s *Scheduler) { s.lookahead.next = start }, 16, 250},
		"room for one":                  {func(s *Scheduler) { s.buffer.ahead.messages = 15 }, 1, 250},
		"room for none":                 {func(s *Scheduler) { s.buffer.ahead.messages = 16 }, 0, 0},
		"room for a byte":               {func(s *Scheduler) { s.buffer.ahead.bytes = 249 }, 16, 1},
		"room for no byte":              {func(s *Scheduler) { s.buffer.ahead.bytes = 250 }, 0, 0},
		"a hint long after the last":    {func(s *Scheduler) { s.reading.hinted, s.lookahead.next = true, start.Add(time.Hour) }, 16, 250},
		"a hint soon after the last began": {func(s *Scheduler) {
			s.reading.hinted, s.lookahead.began, s.lookahead.took = true,
				start.Add(-3), 1
		}, 0, 0},
		"a hint four times as long after": {func(s *Scheduler) {
			s.reading.hinted, s.lookahead.began, s.lookahead.took = true,
				start.Add(-4), 1
		}, 16, 250},
	} {
		s := backlog()
		c.change(s)
		s.wakeAt = start.Add(time.Minute)
		read := s.planLookahead(start)
		if read == nil {
			if c.limit > 0 {
				t.Errorf("%s: no lookahead", name)
			}
			continue
		}
		slices.Sort(read.Known)
		if read.Limit != c.limit || read.Bytes != c.bytes || !read.Lookahead || read.Examine != 10 || read.PerGroup != 2 || read.From != 7 ||
			read.Late != 7 || read.Passed != 7 || !slices.Equal(read.Known, []int64{8}) || !slices.Equal(read.Groups, []Group{{"t", "many"}}) {
			t.Errorf("%s: got %+v", name, read)
		}
		if s.reading.hinted || !s.lookahead.began.Equal(start) || !s.reading.busy {
			t.Errorf("%s: the hint is not used up, or the lookahead has not begun", name)
		}
	}

	s := backlog()
	s.buffer.groups[Group{"t", "many"}] = 1
	if read := s.planLookahead(start); read != nil || !s.lookahead.next.Equal(start.Add(5*time.Millisecond)) {
		t.Errorf("without a long group: got %+v, the next one after %v", read, s.lookahead.next.Sub(start))
	}
	for limit, want := range map[int]int{10: 2, 64: 2, 96: 3, 4096: 128} {
		s.buffer.limit = limit
		if got := s.perGroup(); got != want {
			t.Errorf("with room for %d messages, a group of %d is long, want %d", limit, got, want)
		}
	}
}

// Lookaheads take at most a fifth of the time. A new round begins after ten times as long
// as the last one took.
func TestLookaheadsTakeAFifthOfTheTime(t *testing.T) {
	t.Parallel()
	s := backlog()
	l := &s.lookahead
	read := s.planLookahead(start)
	now := start.Add(10 * time.Millisecond)
	s.endLookahead(now, &Read{})
	if l.took != 0 || !l.next.IsZero() {
		t.Fatalf("a sweep counts as a lookahead: %+v", l)
	}
	s.endLookahead(now, read)
	if l.took != 10*time.Millisecond || l.spent != 10*time.Millisecond || !l.next.Equal(now.Add(40*time.Millisecond)) {
		t.Fatalf("it took %v, all %v, the next one after %v", l.took, l.spent, l.next.Sub(now))
	}
	l.began, l.ended = now, start
	now = now.Add(time.Millisecond)
	s.endLookahead(now, read)
	if l.took != time.Millisecond || l.spent != 10*time.Millisecond || !l.next.Equal(now.Add(5*time.Millisecond)) {
		t.Fatalf("it took %v, all %v, the next one after %v", l.took, l.spent, l.next.Sub(now))
	}

	l.skipped.add(1)
	l.ended, l.next = start, time.Time{}
	if s.planLookahead(start.Add(100*time.Millisecond)) == nil || !l.skipped.has(1) || l.ended.IsZero() {
		t.Fatal("a new round begins too early")
	}
	epoch := l.epoch
	if s.planLookahead(start.Add(100*time.Millisecond+1)) == nil || l.skipped.has(1) || !l.ended.IsZero() || l.epoch != epoch+1 {
		t.Fatal("no new round begins")
	}
}

// Lookaheads end when sweeps reach the end of the outbox.
func TestLookaheadsEndWithTheBacklog(t *testing.T) {
	t.Parallel()
	l := lookahead{skipped: newKeySet(), full: 2}
	l.swept(Reach{Covered: Everything - 1})
	if l.full != 3 || l.skipped.bits == nil {
		t.Fatalf("a full sweep: got %d", l.full)
	}
	l.swept(Reach{Covered: Everything})
	if l.full != 0 || l.skipped.bits != nil || l.epoch != 1 {
		t.Fatalf("the end: got %d, epoch %d", l.full, l.epoch)
	}
	l.swept(Reach{Covered: Everything})
	if l.epoch != 1 {
		t.Fatal("it ends twice")
	}
}

// Messages that a lookahead has found take turns with the others, and are counted apart.
func TestMessagesOfLookaheadsTakeTurns(t *testing.T) {
	t.Parallel()
	b := newBuffer(64)
	for position := range int64(6) {
		b.add(&Message{Position: position, Topic: "t", Payload: make([]byte, 10), ahead: position > 2}, false)
	}
	if b.count() != 3 || b.ahead.messages != 3 || b.bytes != 30 || b.ahead.bytes != 30 || b.groups[Group{"t", ""}] != 6 {
		t.Fatalf("%d and %d messages of %d and %d bytes", b.count(), b.ahead.messages, b.bytes, b.ahead.bytes)
	}
	every := func(string) bool { return true }
	for _, want := range []int64{0, 3, 1, 4, 2, 5} {
		m := b.take(every)
		if m == nil || m.Position != want {
			t.Fatalf("took %+v, want %d", m, want)
		}
		b.unload(m)
		b.forget(m)
		b.forget(m)
	}
	if m := b.take(every); m != nil {
		t.Fatalf("took %+v, want none", m)
	}
	if b.count() != 0 || b.ahead.messages != 0 || b.bytes != 0 || b.ahead.bytes != 0 || len(b.groups) != 0 {
		t.Fatalf("%d and %d messages of %d and %d bytes are left", b.count(), b.ahead.messages, b.bytes, b.ahead.bytes)
	}
	b.add(&Message{Position: 9, Topic: "t", ahead: true}, false)
	b.ahead.turn = false
	if m := b.take(every); m == nil || m.Position != 9 {
		t.Fatalf("took %+v, want 9, because there is no other", m)
	}
}

// A few hashes share a bit, but never a hash and its neighbour.
func TestSetOfKeysFindsThem(t *testing.T) {
	t.Parallel()
	set := newKeySet()
	hashes := []int64{0, 1, 63, 64, -1, 1<<24 - 2, 1 << 23}
	for i, hash := range hashes {
		if set.has(hash) {
			t.Errorf("%d is found before it is added", hash)
		}
		set.add(hash)
		for _, other := range hashes[:i+1] {
			if !set.has(other) {
				t.Errorf("%d is not found", other)
			}
		}
	}
	if set.has(2) || set.has(65) || !set.has(1<<24) {
		t.Error("another bit is set")
	}
}

// What a transaction has settled before a new round began says nothing about the rows of
// this round.
func TestNewRoundForgetsTransactionsOfTheLastOne(t *testing.T) {
	t.Parallel()
	s := backlog()
	s.planLookahead(start)
	s.lookahead.cursor.seen = 500
	before := s.Sight()
	s.lookahead.reset()
	s.lookahead.next = time.Time{}
	if read := s.planLookahead(start); read == nil || read.From != 7 {
		t.Fatalf("got %+v, want a new round", read)
	}
	s.Wrote(before)
	if got := s.lookahead.cursor.settled; got != 0 {
		t.Fatalf("%d is settled, want nothing", got)
	}
	s.Wrote(s.Sight())
	if got := s.lookahead.cursor.settled; got != 7 {
		t.Fatalf("%d is settled, want 7", got)
	}
}

// A message that was taken is not kept in the memory of the heap.
func TestTakenMessagesAreFreed(t *testing.T) {
	t.Parallel()
	h := &messageHeap{{Position: 1}, {Position: 2}}
	for want := range int64(2) {
		if m, _ := heap.Pop(h).(*Message); m.Position != want+1 {
			t.Fatalf("got %d, want %d", m.Position, want+1)
		}
	}
	if all := (*h)[:2]; all[0] != nil || all[1] != nil {
		t.Error("messages are kept")
	}
}
