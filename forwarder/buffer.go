package forwarder

// buffer is what is in memory of the outbox: every row that was read and has
// not been settled.
type buffer struct {
	most  int // rows that are to be in memory
	rows  map[int64]*row
	bytes int
	ready ready // may be published now
	lanes map[string]*lane
	low   int64 // of the cursor: what lies above may be read again

	orphans int // rows of slots that were lost, in flight or still to be deleted

	refills []*lane // wanted; some perhaps no longer
}

func newBuffer(most int) buffer {
	return buffer{most: most, rows: map[int64]*row{}, ready: ready{topics: map[string]*rowHeap{}}, lanes: map[string]*lane{}}
}

// laneLimit is how many rows wait in a lane, but for a moment: what is behind
// them in the outbox must not wait until the buffer has taken them all.
func (b *buffer) laneLimit() int { return min(128, max(4, b.most/16)) }

// add takes in a row that was read. It is dropped, for a refill to find, when
// its lane does not take it.
func (b *buffer) add(r *row, refill bool) {
	if b.rows[r.position] != nil {
		return
	}
	if r.key == "" {
		b.keep(r)
		b.ready.put(r)
		return
	}
	l := b.lanes[r.key]
	switch {
	case l == nil:
		l = &lane{key: r.key, slot: r.slot}
		b.lanes[r.key] = l
	case l.excluded && !refill:
		return // read before the lane was excluded
	case len(l.waiting) >= b.laneLimit() && !refill:
		l.exclude(b.low)
		return
	}
	b.keep(r)
	r.lane = l
	if r.heldByItself {
		l.exclude(r.successorsAfter) // the hold keeps its successors out of the reads until it is confirmed
	}
	if l.head == nil {
		l.head = r
		b.ready.put(r)
	} else {
		l.add(r)
	}
}

func (b *buffer) keep(r *row) {
	b.rows[r.position] = r
	b.bytes += r.size()
}

// unload frees the bytes of a row that will not be published again.
func (b *buffer) unload(r *row) {
	if b.rows[r.position] == r {
		b.bytes -= r.size()
		r.payload, r.metadata = nil, nil
	}
}

// forget drops a row: it was settled, or is to be read again.
func (b *buffer) forget(r *row) {
	if b.rows[r.position] == r {
		b.bytes -= r.size()
		delete(b.rows, r.position)
		if r.orphan {
			b.orphans--
		}
	}
}

// next puts the successor of a lane's confirmed head in its place.
func (b *buffer) next(l *lane) {
	l.head = nil
	if len(l.waiting) > 0 {
		l.head = l.waiting[0]
		l.waiting = l.waiting[1:]
		b.ready.put(l.head)
	}
	switch {
	case l.excluded && len(l.waiting) <= b.laneLimit()/2:
		b.want(l)
	case l.excluded:
	case l.head == nil:
		delete(b.lanes, l.key)
	}
}

// bar drops what waits behind a head that is not settled, for a refill to find
// once it is.
func (b *buffer) bar(l *lane) {
	from := min(b.low, l.head.position)
	for _, r := range l.waiting {
		from = min(from, r.position-1) // one that was committed late lies below the head
		b.forget(r)
	}
	l.waiting = nil
	l.exclude(from)
	l.wanted = false
	l.epoch++
}

// empty drops everything in a lane. It stays excluded until a refill is wanted.
func (b *buffer) empty(l *lane) {
	l.exclude(l.head.position - 1)
	b.bar(l)
	b.forget(l.head)
	l.head = nil
}

// unbar removes a head that has been settled and asks for its successors.
func (b *buffer) unbar(l *lane) {
	b.bar(l)
	l.head = nil
	b.want(l)
}

// want asks for a refill.
func (b *buffer) want(l *lane) {
	if !l.wanted {
		l.wanted = true
		b.refills = append(b.refills, l)
	}
}

// wantAll has refills begin at the start, and asks for one of every lane that has
// nothing in memory.
func (b *buffer) wantAll() {
	for _, l := range b.lanes {
		l.from = 0
		if l.head == nil {
			b.want(l)
		}
	}
}

// takeRefills returns lanes that are to be refilled now, at most so many.
func (b *buffer) takeRefills(most int) []*lane {
	var taken []*lane
	for len(b.refills) > 0 && len(taken) < most {
		l := b.refills[0]
		b.refills = b.refills[1:]
		if l.wanted && !l.reading && b.lanes[l.key] == l {
			l.reading = true
			taken = append(taken, l)
		}
	}
	return taken
}

// refilled ends a refill, which has read the key up to a position, or
// everything of it. The next one begins there, but not above what the cursor
// has passed: a transaction may still add a row of the key.
func (b *buffer) refilled(l *lane, upTo int64) {
	l.wanted = false
	switch {
	case l.head != nil && l.head.heldByItself: // those that wait for it were not read, wherever they are
	case upTo < everything:
		l.from = max(l.from, min(upTo, b.low))
		if len(l.waiting) <= b.laneLimit()/2 {
			b.want(l)
		}
	case l.head == nil:
		delete(b.lanes, l.key)
	default:
		l.excluded = false
	}
}

// drop forgets the rows of slots, except those under way or confirmed, whose
// outcome is still to be recorded.
func (b *buffer) drop(slots map[int64]bool) {
	b.ready.drop(slots)
	for key, l := range b.lanes {
		if slots[l.slot] {
			delete(b.lanes, key)
		}
	}
	for _, r := range b.rows {
		switch {
		case !slots[r.slot] || r.orphan:
		case r.ticket == 0 && !r.final:
			b.forget(r)
		default:
			r.lane, r.orphan = nil, true
			b.orphans++
		}
	}
}
