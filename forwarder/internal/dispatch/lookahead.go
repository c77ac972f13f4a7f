package dispatch

import (
	"time"
)

// Group identifies the messages of one topic and tenant.
type Group struct{ Topic, Tenant string }

const (
	// Messages that lookaheads have found may use 1/aheadPart of the memory.
	aheadPart = 4

	// aheadAfter is how long sweeps do not reach the end of the outbox before lookaheads begin.
	// They cost a seventh of the database's work, so a short backlog has none.
	aheadAfter = 2 * time.Second

	// A group is long if it has 1/longGroups of the messages that memory can hold, see perGroup, so
	// only about longGroups can be.
	longGroups = 32
)

// lookahead keeps a group with many messages from delaying one with few. Sweeps read in the order
// of positions, so they see only the first part of a long outbox. Lookaheads examine the rows after
// it, and read those of groups with few messages in memory.
//
// There are two walks through these rows. A round examines all rows above the cursor of the sweeps.
// At the end of the outbox it becomes the tail, which examines new rows as they arrive. Later a new
// round finds rows that were skipped because their group had too many messages, and rows that were
// committed after the tail had passed their positions. During the first round, the tail begins just
// before the end of the outbox, and reads only rows without a key.
type lookahead struct {
	full   int       // number of consecutive sweeps that did not reach the end of the outbox
	epoch  int       // changes when a walk begins, and to make the Scheduler ignore the lookahead under way
	found  time.Time // when a lookahead last found a message
	hinted bool      // Hint was called since the last lookahead of the tail began
	more   bool      // since the last round began, rows were skipped that the next round may read

	tail, round       walk
	tailDue, roundDue time.Time // when the next lookahead of the tail and of the round is due

	began time.Time     // when the last lookahead began
	took  time.Duration // time that the last lookahead took
	spent time.Duration // total time of the lookaheads of the last round
	ended time.Time     // when the last round ended
}

// walk is the state of a walk through the rows above the messages in memory.
//
// A message must not be sent before an earlier one of its key, so the walk remembers the key of
// each skipped row, as a hash, and skips the later rows of this key.
//
// Rows can be committed late, below rows that the walk has examined, so the walk has its own
// cursor. After it has moved, the next lookahead adds the keys of all rows up to it to the skipped
// keys; passed is how far this is done. A row with a key is read only if the key has no other row
// between that position and the examined rows.
type walk struct {
	cursor  cursor // cursor.low can be above the field passed
	passed  int64  // the field skipped contains the keys of all rows up to this position, except rows in memory
	skipped keySet

	begun   bool
	keyless bool // skip all rows with a key, because the rows below the walk were not examined
}

func (w *walk) active() bool { return w.begun }

// Skipped is a row with a key that a lookahead has examined and not returned.
type Skipped struct{ Position, KeyHash int64 }

type aheadBuffer struct {
	messages int // number of these messages in memory
	bytes    int
	ready    ready
	turn     bool // whether the next call of the method take tries these messages first
}

func (b *buffer) put(m *Message) {
	if m.ahead {
		b.ahead.ready.put(m)
	} else {
		b.ready.put(m)
	}
}

// take alternates between the messages that lookaheads have found and the others.
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

// The next round begins at the cursor of the sweeps.
func (l *lookahead) reset() {
	*l = lookahead{
		full: l.full, roundDue: l.roundDue, began: l.began, took: l.took, found: l.found, hinted: l.hinted, epoch: l.epoch + 1,
	}
}

// The walks end when a sweep reaches the end of the outbox.
func (l *lookahead) swept(now time.Time, at Reach) {
	if at.Covered < Everything {
		if l.full++; l.full == 1 && l.roundDue.Before(now.Add(aheadAfter)) {
			l.roundDue = now.Add(aheadAfter)
		}
		return
	}
	l.full = 0
	if l.tail.active() || l.round.active() {
		l.reset() // sweeps read everything, so the memory of the walks is not needed
	}
}

// due returns the walk whose next lookahead is due, or nil and the time of the next one.
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

// rest returns the time between two rounds: ten times that of the last round's lookaheads if the
// next one may find messages, otherwise two hundred times.
func (l *lookahead) rest() time.Duration {
	if l.more {
		return 10 * l.spent
	}
	return 200 * l.spent
}

func (s *Scheduler) longGroups() []Group {
	var long []Group
	for g, n := range s.buffer.groups {
		if n >= s.perGroup() {
			long = append(long, g)
		}
	}
	return long
}

func (s *Scheduler) perGroup() int { return max(2, s.buffer.limit/longGroups) }

// planLookahead returns nil if no lookahead is due.
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
		*w = walk{begun: true, cursor: cursor{low: s.cursor.low, era: l.epoch}}
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

// crowdedWindow is smaller for some time after a lookahead has found a message behind a long
// backlog: messages of a long group that are in flight delay all later ones in the broker.
func (s *Scheduler) crowdedWindow(now time.Time) int {
	l := &s.lookahead
	if !l.tail.active() && !l.round.active() || l.found.IsZero() || now.Sub(l.found) > 5*time.Second {
		return s.config.Window
	}
	return (s.config.Window + 7) / 8
}

// endLookahead decides when the next lookahead begins. Those of the tail use at most half of the
// time; they usually find no row, and are quick. This hardly slows the forwarder down, because with
// a backlog publishing takes longer than reading. Those of a round also use at most half of the
// time if rows wait for the next round, otherwise a sixteenth, because sweeps and the tail wait for
// them.
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

// addLookahead leaves out rows whose key was skipped.
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
		from := at.End - int64(s.config.LookaheadRows) // the newest rows
		l.tail = walk{cursor: cursor{low: from, seen: from, era: l.epoch}, passed: from, begun: true, keyless: true}
		l.tailDue = now
	}
}

// keySet is a set of hashes of keys. Two keys can share a bit. Then lookaheads skip the messages of
// a key that was not added, and a sweep reads them later.
//
// The bits are on pages, because most sets are small.
type keySet struct{ pages []*keySetPage }

const (
	keySetPages = 512
	keySetBits  = 1 << 24
)

type keySetPage [keySetBits / 64 / keySetPages]uint64

func (k *keySet) add(hash int64) {
	if k.pages == nil {
		k.pages = make([]*keySetPage, keySetPages)
	}
	page, word, bit := keySetBit(hash)
	if k.pages[page] == nil {
		k.pages[page] = new(keySetPage)
	}
	k.pages[page][word] |= bit
}

func (k *keySet) has(hash int64) bool {
	page, word, bit := keySetBit(hash)
	return k.pages != nil && k.pages[page] != nil && k.pages[page][word]&bit != 0
}

func keySetBit(hash int64) (page, word, bit uint64) {
	n := uint64(hash) % keySetBits
	word = n / 64
	return word % keySetPages, word / keySetPages, 1 << (n % 64)
}
