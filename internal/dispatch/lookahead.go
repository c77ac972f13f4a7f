package dispatch

import (
	"time"
)

// A Group is the messages of one topic and tenant.
type Group struct{ Topic, Tenant string }

const (
	// aheadPart is the part of the memory for messages that lookaheads have found: one
	// of four.
	aheadPart = 4

	// longGroups is the maximum number of groups that can be long at the same time.
	longGroups = 32
)

// lookahead keeps the many messages of one group from holding up the few of another.
// Sweeps read the outbox in the order of positions. While the messages in memory, and a
// batch behind them, are not the whole outbox, lookaheads examine the rows behind them,
// and read those of groups that have few messages in memory.
//
// A round examines all rows, from the cursor of the sweeps on. When it has reached the
// end of the outbox, its walk becomes the tail, which examines new rows. Later a new
// round begins: it finds rows that were skipped because their group had too many, and
// rows that were committed late behind the tail. Meanwhile the tail continues. During the
// first round, a tail without keys begins just before the end of the outbox.
type lookahead struct {
	full   int       // number of sweeps in a row that have stopped at their limit
	epoch  int       // changes when a walk begins, and when the result of the lookahead under way must be ignored
	found  time.Time // when a lookahead last found a message
	hinted bool      // Hint was called since the last lookahead of the tail began
	more   bool      // rows that may be read were skipped since the last round began

	tail, round       walk
	tailDue, roundDue time.Time // when the next lookahead of each is due

	began time.Time     // when the last lookahead began
	took  time.Duration // by the last lookahead
	spent time.Duration // by the lookaheads of the last round
	ended time.Time     // when the last round has ended
}

// walk is a walk through the rows behind the messages in memory.
//
// A message may not be sent before an earlier message of its key. So the keys of the
// rows that were skipped are remembered, as hashes, and later rows of these keys are
// skipped too. A row can be committed late, below rows that were examined. So a walk
// has its own cursor, and a row with a key is read only if no row of the key is between
// the cursor and the rows that are examined. When no transaction can add a row below a
// position any more, the next lookahead remembers the keys of the rows up to this
// position as those of skipped rows. Only then does the cursor pass it.
type walk struct {
	cursor  cursor // its low may be above passed
	passed  int64  // a key of a row up to this position that is not in memory is in skipped
	skipped keySet

	keyless bool // rows below the walk were not examined, so it skips all rows with a key
}

// active reports whether the walk has begun.
func (w *walk) active() bool { return w.skipped.bits != nil }

// Skipped is a row with a key that a lookahead has examined and that is not in its
// result.
type Skipped struct{ Position, KeyHash int64 }

// aheadBuffer contains the messages that lookaheads have found.
type aheadBuffer struct {
	messages int // in memory
	bytes    int
	ready    ready
	turn     bool // the next message to publish is one of these
}

// put adds a message to those that may be published.
func (b *buffer) put(m *Message) {
	if m.ahead {
		b.ahead.ready.put(m)
	} else {
		b.ready.put(m)
	}
}

// take is like ready.take. Messages that a lookahead has found take turns with others.
func (b *buffer) take(may func(topic string) bool) *Message {
	if b.ahead.ready.count == 0 {
		return b.ready.take(may)
	}
	first, second := &b.ready, &b.ahead.ready
	if b.ahead.turn {
		first, second = second, first
	}
	b.ahead.turn = !b.ahead.turn
	if m := first.take(may); m != nil {
		return m
	}
	return second.take(may)
}

// reset ends both walks. A new round begins at the cursor of the sweeps.
func (l *lookahead) reset() {
	*l = lookahead{
		full: l.full, roundDue: l.roundDue, began: l.began, took: l.took, found: l.found, hinted: l.hinted, epoch: l.epoch + 1,
	}
}

// swept records how far a sweep came.
func (l *lookahead) swept(at Reach) {
	if at.Covered < Everything {
		l.full++
		return
	}
	l.full = 0
	if l.tail.active() || l.round.active() {
		l.reset() // sweeps read everything, and the memory is not needed
	}
}

// due reports whether the next lookahead is due, and for which walk. Otherwise it returns
// when it will be due.
func (l *lookahead) due(now time.Time) (w *walk, at time.Time) {
	at = l.roundDue
	if l.tail.active() {
		tail := l.tailDue
		if l.hinted {
			tail = l.began.Add(2 * l.took)
		}
		if !now.Before(tail) {
			return &l.tail, tail
		}
		if next := l.ended.Add(l.rest()); !l.round.active() && at.Before(next) {
			at = next
		}
		if tail.Before(at) {
			return nil, tail
		}
	}
	if now.Before(at) {
		return nil, at
	}
	return &l.round, at
}

// rest returns the time between two rounds: ten times as long as the lookaheads of the
// last one took, if a new round will find messages, and otherwise fifty times.
func (l *lookahead) rest() time.Duration {
	if l.more {
		return 10 * l.spent
	}
	return 50 * l.spent
}

// longGroups returns the groups that have many messages in memory.
func (s *Scheduler) longGroups() []Group {
	var long []Group
	for g, n := range s.buffer.groups {
		if n >= s.perGroup() {
			long = append(long, g)
		}
	}
	return long
}

// perGroup is the number of messages in memory from which on a group is long.
func (s *Scheduler) perGroup() int { return max(2, s.buffer.limit/longGroups) }

// planLookahead returns a command that reads behind the messages in memory, or nil.
func (s *Scheduler) planLookahead(now time.Time) *Read {
	l := &s.lookahead
	if s.config.LookaheadRows == 0 || l.full*s.config.BatchSize < s.buffer.limit || len(s.buffer.queues) > maxQueues {
		return nil
	}
	if !now.Before(s.reading.rescan) {
		return nil // earlier messages may be below the cursor of the sweeps
	}
	w, due := l.due(now)
	if w == nil {
		s.wake(due)
		return nil
	}
	limit := min(s.config.BatchSize, s.buffer.limit/aheadPart-s.buffer.ahead.messages)
	bytes := s.config.BufferBytes/aheadPart - s.buffer.ahead.bytes
	long := s.longGroups()
	if limit < 1 || bytes <= 0 {
		return nil // a settlement will make room
	}
	if len(long) == 0 {
		l.tailDue, l.roundDue, l.hinted = now.Add(s.config.PollMin), now.Add(s.config.PollMin), false
		return nil
	}
	if !w.active() {
		l.epoch++
		l.spent, l.more = 0, false
		*w = walk{skipped: newKeySet(), cursor: cursor{low: s.cursor.low, era: l.epoch}}
	}
	w.cursor.low, w.passed = max(w.cursor.low, s.cursor.low), max(w.passed, s.cursor.low)
	w.cursor.seen = max(w.cursor.seen, w.cursor.low)
	l.began = now
	read := s.newRead(limit, bytes)
	read.Lookahead, read.From, read.Examine = true, w.cursor.seen, s.config.LookaheadRows
	read.Late, read.Passed = w.passed, w.cursor.low
	read.Groups, read.PerGroup = long, s.perGroup()
	if read.round = w == &l.round; !read.round && w.cursor.seen-w.cursor.low <= int64(s.config.LookaheadRows/10) {
		read.From = w.cursor.low // finds rows that were committed late
	}
	read.epoch = l.epoch
	_, read.settled = w.cursor.sights()
	for position := range s.buffer.messages {
		if position > read.Late {
			read.Known = append(read.Known, position)
		}
	}
	s.exclude(read)
	if !read.round {
		l.hinted = false
	}
	return read
}

// crowdedWindow returns the window while messages are found behind a backlog. Messages of
// a long group in flight delay each message after them in the broker, so there are fewer
// of them for some time.
func (s *Scheduler) crowdedWindow(now time.Time) int {
	l := &s.lookahead
	if !l.tail.active() && !l.round.active() || l.found.IsZero() || now.Sub(l.found) > 5*time.Second {
		return s.config.Window
	}
	return (s.config.Window + 7) / 8
}

// endLookahead decides when the next lookahead begins. Those of the tail usually find no
// row, and are quick. They take at most half of the time, and are more frequent than
// sweeps of an outbox without a backlog, because what follows takes longer. Those of a
// round take at most half of the time if rows wait for the next round. Otherwise they
// take a sixteenth, because sweeps and the tail wait for them.
func (s *Scheduler) endLookahead(now time.Time, read *Read) {
	l := &s.lookahead
	if !read.Lookahead {
		return
	}
	l.took = now.Sub(l.began)
	if !read.round {
		pause := min(max(now.Sub(l.found)/8, s.config.PollMin), s.config.PollMax)
		l.tailDue = now.Add(max(l.took, pause))
		return
	}
	l.spent += l.took
	pause := 15 * l.took
	if l.more {
		pause = l.took
	}
	l.roundDue = now.Add(max(pause, s.config.PollMin))
}

// addLookahead adds the rows of a lookahead whose keys were not skipped.
func (s *Scheduler) addLookahead(now time.Time, read *Read, rows []*Message, at Reach) {
	l := &s.lookahead
	if read.epoch != l.epoch {
		return
	}
	w := &l.tail
	if read.round {
		w = &l.round
	}
	if at.Ceiling < w.cursor.ceiling {
		l.reset() // see cursor.advance
		return
	}
	first := make(map[int64]int64, len(at.Skipped)) // the first skipped position of each key
	skip := func(hash, position int64) {
		if p, ok := first[hash]; !ok || position < p {
			first[hash] = position
		}
	}
	for _, row := range at.Skipped {
		skip(row.KeyHash, row.Position)
	}
	for _, m := range rows {
		if s.paused.holds(m) {
			skip(m.KeyHash, m.Position)
			continue
		}
		if m.Key != "" {
			if p, ok := first[m.KeyHash]; w.keyless || w.skipped.has(m.KeyHash) || ok && p < m.Position {
				skip(m.KeyHash, m.Position)
				at.More = true
				continue
			}
		}
		m.ahead, l.found = true, now
		s.buffer.add(m, false)
	}
	for hash := range first {
		w.skipped.add(hash)
	}
	l.more = l.more || at.More
	w.passed = read.Passed
	w.cursor.advance(at, read.settled)
	switch {
	case !read.round:
	case at.Covered == Everything:
		l.tail, l.round, l.tailDue, l.ended = l.round, walk{}, now, now
	case !l.tail.active() && at.End > at.Highest:
		l.epoch++
		from := at.End - int64(s.config.LookaheadRows) // the rows that came last
		l.tail = walk{cursor: cursor{low: from, seen: from, era: l.epoch}, passed: from, skipped: newKeySet(), keyless: true}
		l.tailDue = now
	}
}

// keySet is a set of hashed keys. A few keys that were not added may be in it: their
// messages wait until a sweep reads them.
type keySet struct{ bits []uint64 }

const keySetBits = 1 << 24

func newKeySet() keySet { return keySet{make([]uint64, keySetBits/64)} }

func (k *keySet) at(hash int64) (word *uint64, bit uint64) {
	n := uint64(hash) % keySetBits
	return &k.bits[n/64], 1 << (n % 64)
}

func (k *keySet) add(hash int64) {
	word, bit := k.at(hash)
	*word |= bit
}

func (k *keySet) has(hash int64) bool {
	word, bit := k.at(hash)
	return *word&bit != 0
}
