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
// A message may not be sent before an earlier message of its key. So the keys of the
// rows that were skipped are remembered, as hashes, and later rows of these keys are
// skipped too. A row can be committed late, below rows that were examined. So the
// lookahead has its own cursor, and a row with a key is read only if no row of the key
// is between the cursor and the rows that are examined. When no transaction can add
// a row below a position any more, the next lookahead remembers the keys of the rows up
// to this position as those of skipped rows. Only then does the cursor pass it.
//
// When all rows are examined, lookaheads examine new rows only. After ten times as
// long as this took, a new round begins at the cursor of the sweeps: it finds rows that
// were committed late, and rows that were skipped because their group had too many.
type lookahead struct {
	cursor  cursor // its low may be above passed
	passed  int64  // a key of a row up to this position that is not in memory is in skipped
	full    int    // number of sweeps in a row that have stopped at their limit
	next    time.Time
	epoch   int       // changes when the result of the lookahead under way must be ignored
	found   time.Time // when a lookahead last found a message
	skipped keySet

	began time.Time     // when the last lookahead began
	took  time.Duration // by the last lookahead
	spent time.Duration // by the lookaheads of this round until ended
	ended time.Time     // when this round has first examined all rows, or zero
}

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

// reset ends the lookahead. The next one begins at the cursor of the sweeps.
func (l *lookahead) reset() {
	*l = lookahead{full: l.full, next: l.next, began: l.began, took: l.took, found: l.found, epoch: l.epoch + 1}
}

// swept records how far a sweep came.
func (l *lookahead) swept(at Reach) {
	if at.Covered < Everything {
		l.full++
		return
	}
	l.full = 0
	if l.skipped.bits != nil {
		l.reset() // sweeps read everything, and the memory is not needed
	}
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
	due := l.next
	if s.reading.hinted {
		due = l.began.Add(4 * l.took)
	}
	if now.Before(due) {
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
		l.next = now.Add(s.config.PollMin)
		return nil
	}
	if !l.ended.IsZero() && now.Sub(l.ended) > 10*l.spent {
		l.reset()
	}
	if l.skipped.bits == nil {
		l.skipped = newKeySet()
		l.cursor = cursor{low: s.cursor.low, era: l.epoch}
	}
	l.cursor.low, l.passed = max(l.cursor.low, s.cursor.low), max(l.passed, s.cursor.low)
	l.cursor.seen = max(l.cursor.seen, l.cursor.low)
	l.began = now
	read := s.newRead(limit, bytes)
	read.Lookahead, read.From, read.Examine = true, l.cursor.seen, s.config.LookaheadRows
	read.Late, read.Passed = l.passed, l.cursor.low
	read.Groups, read.PerGroup = long, s.perGroup()
	read.epoch = l.epoch
	_, read.settled = l.cursor.sights()
	for position := range s.buffer.messages {
		if position > read.Late {
			read.Known = append(read.Known, position)
		}
	}
	s.exclude(read)
	s.reading.hinted = false
	return read
}

// crowdedWindow returns the window while messages are found behind a backlog. Messages of
// a long group in flight delay each message after them in the broker, so there are fewer
// of them for some time.
func (s *Scheduler) crowdedWindow(now time.Time) int {
	l := &s.lookahead
	if l.skipped.bits == nil || l.found.IsZero() || now.Sub(l.found) > 5*time.Second {
		return s.config.Window
	}
	return (s.config.Window + 3) / 4
}

// endLookahead decides when the next lookahead begins. Lookaheads take at most a fifth of
// the time.
func (s *Scheduler) endLookahead(now time.Time, read *Read) {
	l := &s.lookahead
	if !read.Lookahead {
		return
	}
	l.took = now.Sub(l.began)
	if l.ended.IsZero() {
		l.spent += l.took
	}
	l.next = now.Add(max(4*l.took, s.config.PollMin))
}

// addLookahead adds the rows of a lookahead whose keys were not skipped.
func (s *Scheduler) addLookahead(now time.Time, read *Read, rows []*Message, at Reach) {
	l := &s.lookahead
	if read.epoch != l.epoch {
		return
	}
	if at.Ceiling < l.cursor.ceiling {
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
			if p, ok := first[m.KeyHash]; l.skipped.has(m.KeyHash) || ok && p < m.Position {
				skip(m.KeyHash, m.Position)
				continue
			}
		}
		m.ahead, l.found = true, now
		s.buffer.add(m, false)
	}
	for hash := range first {
		l.skipped.add(hash)
	}
	l.passed = read.Passed
	l.cursor.advance(at, read.settled)
	if at.Covered == Everything && l.ended.IsZero() {
		l.ended = now
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
