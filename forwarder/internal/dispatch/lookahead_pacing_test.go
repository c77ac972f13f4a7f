package dispatch

import (
	"container/heap"
	"slices"
	"strconv"
	"testing"
	"time"
)

// backlog returns a Scheduler for which a lookahead is due: sweeps have read as many
// rows as fit into memory without reaching the end of the outbox, and one group is
// long.
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

// Lookaheads begin only if there is a long backlog, and one group is long. Otherwise
// they are not worth their cost.
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
		"not due":                       {func(s *Scheduler) { s.lookahead.roundDue = start.Add(1) }, 0, 0},
		"due now":                       {func(s *Scheduler) { s.lookahead.roundDue = start }, 16, 250},
		"a hint in the first round":     {func(s *Scheduler) { s.lookahead.hinted, s.lookahead.roundDue = true, start.Add(1) }, 0, 0},
		"room for one":                  {func(s *Scheduler) { s.buffer.ahead.messages = 15 }, 1, 250},
		"room for none":                 {func(s *Scheduler) { s.buffer.ahead.messages = 16 }, 0, 0},
		"room for a byte":               {func(s *Scheduler) { s.buffer.ahead.bytes = 249 }, 16, 1},
		"room for no byte":              {func(s *Scheduler) { s.buffer.ahead.bytes = 250 }, 0, 0},
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
		if !s.lookahead.began.Equal(start) || !s.reading.busy {
			t.Errorf("%s: the lookahead has not begun", name)
		}
	}

	s := backlog()
	s.lookahead.roundDue, s.wakeAt = start.Add(time.Second), start.Add(time.Minute)
	if read := s.planLookahead(start); read != nil || !s.wakeAt.Equal(start.Add(time.Second)) {
		t.Errorf("before it is due: got %+v, and it wakes up after %v", read, s.wakeAt.Sub(start))
	}
	s = backlog()
	s.buffer.groups[Group{"t", "many"}] = 1
	if read := s.planLookahead(start); read != nil || !s.lookahead.roundDue.Equal(start.Add(5*time.Millisecond)) {
		t.Errorf("without a long group: got %+v, the next one after %v", read, s.lookahead.roundDue.Sub(start))
	}
	for limit, want := range map[int]int{10: 2, 64: 2, 96: 3, 4096: 128} {
		s.buffer.limit = limit
		if got := s.perGroup(); got != want {
			t.Errorf("with room for %d messages, a group of %d is long, want %d", limit, got, want)
		}
	}
}

// Lookaheads of a round use half of the time if rows wait for the next round, and
// otherwise a sixteenth. A new round begins after two hundred times the time that the last
// round took, or after ten times this time if it will find messages.
func TestPausesBetweenLookaheadsOfARound(t *testing.T) {
	t.Parallel()
	s := backlog()
	l := &s.lookahead
	read := s.planLookahead(start)
	if !read.round || !l.round.active() || l.tail.active() {
		t.Fatalf("no round begins: %+v", l)
	}
	now := start.Add(10 * time.Millisecond)
	s.endLookahead(now, &Read{})
	if l.took != 0 || !l.roundDue.IsZero() {
		t.Fatalf("a sweep counts as a lookahead: %+v", l)
	}
	s.endLookahead(now, read)
	if l.took != 10*time.Millisecond || l.spent != 10*time.Millisecond || !l.roundDue.Equal(now.Add(150*time.Millisecond)) {
		t.Fatalf("it took %v, all %v, the next one after %v", l.took, l.spent, l.roundDue.Sub(now))
	}
	for more, pause := range map[bool]time.Duration{true: 10 * time.Millisecond, false: 150 * time.Millisecond} {
		l.more, l.spent = more, 10*time.Millisecond
		s.endLookahead(now, read)
		if l.spent != 20*time.Millisecond || !l.roundDue.Equal(now.Add(pause)) {
			t.Fatalf("more %t: all took %v, the next one after %v", more, l.spent, l.roundDue.Sub(now))
		}
	}
	s.addLookahead(now, read, nil, Reach{Highest: 8, Covered: 8, More: true})
	if !l.more {
		t.Fatal("the lookahead does not remember that rows were left out")
	}
	s.addLookahead(now, read, nil, Reach{Highest: 8, Covered: 8})
	if !l.more {
		t.Fatal("the lookahead forgets that rows were left out")
	}
	l.spent, l.began = 20*time.Millisecond, now
	now = now.Add(time.Millisecond)
	s.endLookahead(now, read)
	if l.took != time.Millisecond || l.spent != 21*time.Millisecond || !l.roundDue.Equal(now.Add(5*time.Millisecond)) {
		t.Fatalf("it took %v, all %v, the next one after %v", l.took, l.spent, l.roundDue.Sub(now))
	}

	s.addLookahead(now, read, nil, Reach{Highest: 500, Covered: Everything, Ceiling: 9})
	if !l.tail.active() || l.tail.cursor.seen != 500 || l.round.active() || !l.ended.Equal(now) || !l.tailDue.Equal(now) {
		t.Fatalf("the round does not become the tail: %+v", l)
	}
	l.tailDue, l.roundDue = now.Add(time.Hour), time.Time{}
	for more, rest := range map[bool]time.Duration{false: 4200 * time.Millisecond, true: 210 * time.Millisecond} {
		l.more = more
		next := now.Add(rest)
		if w, at := l.due(next.Add(-1)); w != nil || !at.Equal(next) {
			t.Fatalf("more %t: the next round begins after %v, want %v", more, at.Sub(now), next.Sub(now))
		}
		if w, _ := l.due(next); w != &l.round {
			t.Fatalf("more %t: no new round begins", more)
		}
	}
	next := now.Add(2 * time.Second)
	epoch := l.epoch
	l.more = true
	if read = s.planLookahead(next); read == nil || !read.round || read.From != 7 || l.spent != 0 || l.more || l.epoch != epoch+1 {
		t.Fatalf("no new round begins: %+v", read)
	}
	if !l.tail.active() || l.tail.cursor.seen != 500 {
		t.Fatal("the tail does not continue")
	}
}

// Lookaheads of the tail are more frequent than sweeps of an outbox without a backlog,
// and use at most half of the time. They have precedence over lookaheads of a round.
func TestPausesBetweenLookaheadsOfTheTail(t *testing.T) {
	t.Parallel()
	s := backlog()
	l := &s.lookahead
	l.tail, l.round = walk{begun: true, cursor: cursor{low: 499, seen: 500}}, walk{begun: true}
	read := s.planLookahead(start)
	if read.round || read.From != 499 {
		t.Fatalf("got %+v, want a lookahead of the tail", read)
	}
	for name, c := range map[string]struct{ took, sinceFound, want time.Duration }{
		"just found":        {time.Millisecond, 0, 5 * time.Millisecond},
		"found lately":      {time.Millisecond, 80 * time.Millisecond, 10 * time.Millisecond},
		"found long ago":    {time.Millisecond, time.Hour, time.Second},
		"it has taken long": {30 * time.Millisecond, 80 * time.Millisecond, 30 * time.Millisecond},
	} {
		now := start.Add(c.took)
		l.found = now.Add(-c.sinceFound)
		s.endLookahead(now, read)
		if got := l.tailDue.Sub(now); got != c.want || l.spent != 0 || !l.roundDue.IsZero() {
			t.Errorf("%s: the next one after %v, want %v; the round has %v", name, got, c.want, l.spent)
		}
	}

	now := start.Add(time.Minute)
	l.tailDue, l.roundDue, l.began, l.took = now.Add(time.Hour), now.Add(2*time.Hour), now, time.Second
	if w, at := l.due(now); w != nil || !at.Equal(l.tailDue) {
		t.Errorf("the next one is due after %v, want the tail's after an hour", at.Sub(now))
	}
	l.tailDue = now.Add(3 * time.Hour)
	if w, at := l.due(now); w != nil || !at.Equal(l.roundDue) {
		t.Errorf("the next one is due after %v, want the round's after two hours", at.Sub(now))
	}
	s.Hint(now)
	if w, at := l.due(now.Add(2*time.Second - 1)); w != nil || !at.Equal(now.Add(2*time.Second)) {
		t.Errorf("after a hint the next one is due after %v, want twice the time that the last one took", at.Sub(now))
	}
	if w, _ := l.due(now.Add(2 * time.Second)); w != &l.tail {
		t.Error("after a hint no lookahead of the tail is due")
	}
	l.roundDue = now
	if w, _ := l.due(now.Add(1)); w != &l.round {
		t.Error("no lookahead of the round is due")
	}
	if !l.hinted {
		t.Error("the hint is used up")
	}
	s.reading.busy = false
	if read := s.planLookahead(now.Add(2 * time.Second)); read == nil || read.round || l.hinted {
		t.Errorf("the hint is not used up by %+v", read)
	}
}

// Lookaheads end when sweeps reach the end of the outbox.
func TestLookaheadsEndWithTheBacklog(t *testing.T) {
	t.Parallel()
	for _, l := range []*lookahead{{round: walk{begun: true}, full: 2}, {tail: walk{begun: true}, full: 2}} {
		l.swept(start, Reach{Covered: Everything - 1})
		if l.full != 3 || !l.round.active() && !l.tail.active() {
			t.Fatalf("a full sweep: got %d", l.full)
		}
		l.swept(start, Reach{Covered: Everything})
		if l.full != 0 || l.round.active() || l.tail.active() || l.epoch != 1 {
			t.Fatalf("the end: got %d, epoch %d", l.full, l.epoch)
		}
		l.swept(start, Reach{Covered: Everything})
		if l.epoch != 1 {
			t.Fatal("it ends twice")
		}
	}
}

// Messages that a lookahead has found alternate with other messages, and are counted
// separately.
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
	for taken, want := range []int64{0, 3, 1, 4, 2, 5} {
		m := b.take(every)
		if m == nil || m.Position != want {
			t.Fatalf("took %+v, want %d", m, want)
		}
		b.unload(m)
		b.forget(m)
		b.forget(m)
		if n := b.groups[Group{"t", ""}]; n != 5-taken {
			t.Fatalf("%d messages of the group, want %d", n, 5-taken)
		}
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

// Different hashes may share a bit of the set, but two consecutive hashes never do.
func TestSetOfKeysFindsThem(t *testing.T) {
	t.Parallel()
	var set keySet
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

// A transaction that ended before a new round began proves nothing about the rows of
// this round. The new round does not use the cursor of the last round, which is now the
// cursor of the tail.
func TestNewRoundForgetsTransactionsOfTheLastOne(t *testing.T) {
	t.Parallel()
	s := backlog()
	s.planLookahead(start)
	s.lookahead.round.cursor.seen = 500
	before := s.Sight()
	s.lookahead.reset()
	s.lookahead.roundDue = time.Time{}
	if read := s.planLookahead(start); read == nil || read.From != 7 {
		t.Fatalf("got %+v, want a new round", read)
	}
	s.Wrote(before)
	if got := s.lookahead.round.cursor.settled; got != 0 {
		t.Fatalf("%d is settled, want nothing", got)
	}
	s.Wrote(s.Sight())
	if got := s.lookahead.round.cursor.settled; got != 7 {
		t.Fatalf("%d is settled, want 7", got)
	}

	before = s.Sight()
	s.addLookahead(start, &Read{epoch: s.lookahead.epoch, round: true}, nil, Reach{Highest: 500, Covered: Everything})
	s.lookahead.tailDue = start.Add(time.Hour)
	if read := s.planLookahead(start.Add(time.Minute)); read == nil || !read.round {
		t.Fatalf("got %+v, want a new round", read)
	}
	s.lookahead.round.cursor.seen = 600
	s.Wrote(before)
	if got := s.lookahead.round.cursor.settled; got != 0 {
		t.Fatalf("%d is settled in the new round, want nothing", got)
	}
	s.Wrote(s.Sight())
	if tail, round := s.lookahead.tail.cursor.settled, s.lookahead.round.cursor.settled; tail != 500 || round != 600 {
		t.Fatalf("%d and %d are settled, want 500 and 600", tail, round)
	}
}

// The heap keeps no pointer to a message that was taken.
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
