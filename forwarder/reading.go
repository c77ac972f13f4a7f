package forwarder

import (
	"context"
	"time"

	"github.com/watermill-once/once/internal/adaptive"
	"github.com/watermill-once/once/internal/telemetry"
)

const (
	// rescanEvery is how often the outbox is read from the start, for what no
	// cursor can promise: a row that was changed by hand, a database that is
	// another one.
	rescanEvery = time.Minute

	// refillsAtOnce bounds the keys of one refill.
	refillsAtOnce = 100

	// mostLanes bounds the keys in memory, some of which have no row there.
	mostLanes = 20_000
)

// reading is the state of the one read that may be under way.
type reading struct {
	busy    bool
	began   time.Time
	took    time.Duration // by the last sweep
	hinted  bool          // since it began
	refill  bool          // the last one was a refill
	found   time.Time     // when something was found, or hinted at, last
	next    time.Time
	rescan  time.Time // when the next rescan is due
	epoch   int       // changes when reads under way are no longer wanted
	rowSize int       // of the last rows that were read, on average
	portion adaptive.Limit
	fault   fault
}

func (r *reading) hint() {
	r.hinted = true
	r.found = time.Now()
}

// read reads ahead if there is room: refills and the outbox take turns.
func (l *loop) read(now time.Time) {
	r := &l.reading
	if r.busy || l.stopping || len(l.tenure.slots) == 0 || r.fault.waits(l, now) {
		return
	}
	limit := min(l.config.BatchSize, l.buffer.most-len(l.buffer.rows))
	bytes := l.config.BufferBytes - l.buffer.bytes
	if limit < (l.config.BatchSize+3)/4 || bytes <= 0 {
		return // room will be made by a settlement
	}
	if l.buffer.ready.count > l.config.BatchSize/2 {
		return // every read passes over what is in memory, so it should bring much
	}
	if r.rowSize > 0 {
		limit = max(1, min(limit, bytes/r.rowSize))
	}
	limit, bytes = r.portion.Of(limit), r.portion.Of(bytes)
	due := r.next
	if r.hinted {
		due = r.began.Add(min(2*r.took, l.config.PollMin)) // hints do not take more than half of a connection's time
	}
	// A sweep brings further keys; a refill may end some.
	crowded := len(l.buffer.lanes) > mostLanes
	switch sweep := !crowded && !now.Before(due); {
	case len(l.buffer.refills) > 0 && (!sweep || !r.refill) && l.refill(limit, bytes):
		r.refill = true
	case sweep:
		r.refill = false
		l.sweep(now, limit, bytes)
	case crowded:
	default:
		l.at(due)
	}
}

// sweep reads the outbox.
func (l *loop) sweep(now time.Time, limit, bytes int) {
	r := &l.reading
	req := request{limit: limit, bytes: bytes, slots: l.tenure.slots}
	if !now.Before(r.rescan) {
		r.rescan = now.Add(rescanEvery)
		l.rewind(0)
		l.buffer.wantAll()
		req.tidy = true
	}
	l.at(r.rescan)
	req.from = l.cursor.low
	_, req.settled = l.cursor.sights()
	for position, row := range l.buffer.rows {
		if position > req.from || row.due {
			req.known = append(req.known, position)
		}
	}
	for key, lane := range l.buffer.lanes {
		if lane.excluded {
			req.keys = append(req.keys, key)
		}
	}
	req.topics = l.blockedTopics()
	r.began, r.hinted = now, false
	l.readRows(req)
}

// refill reads lanes that want it; false if none does any more.
func (l *loop) refill(limit, bytes int) bool {
	lanes := l.buffer.takeRefills(refillsAtOnce)
	if len(lanes) == 0 {
		return false
	}
	req := request{
		limit: min(limit, l.buffer.laneLimit()*len(lanes)), bytes: bytes, slots: l.tenure.slots, from: everything,
	}
	for _, lane := range lanes {
		req.refills = append(req.refills, refill{lane, lane.epoch})
		req.keys = append(req.keys, lane.key)
		req.from = min(req.from, lane.from)
	}
	for position := range l.buffer.rows {
		if position > req.from {
			req.known = append(req.known, position)
		}
	}
	l.readRows(req)
	return true
}

func (l *loop) readRows(req request) {
	l.reading.busy = true
	epoch := l.reading.epoch
	l.ask(func(ctx context.Context) func() {
		began := time.Now()
		rows, at, err := l.store.rows(ctx, req)
		l.instruments.reads.Record(time.Since(began), telemetry.Succeeded(err))
		return func() { l.took(req, epoch, rows, at, err) }
	})
}

// took takes in what a read has returned.
func (l *loop) took(req request, epoch int, rows []*row, at reached, err error) {
	r := &l.reading
	r.busy = false
	for _, refill := range req.refills {
		refill.lane.reading = false
	}
	r.portion.Did(err == nil)
	if err != nil {
		if !l.stopping {
			r.fault.failed(l, "The outbox could not be read", err)
		}
		l.wantAgain(req)
		return
	}
	l.worked(&r.fault, "The outbox could be read")
	if len(rows) > 0 {
		size := 0
		for _, row := range rows {
			size += row.size()
		}
		r.rowSize = size / len(rows)
	}
	switch {
	case epoch != r.epoch || l.stopping:
		l.wantAgain(req)
	case req.refills != nil:
		l.refilled(req, rows, at)
	default:
		l.swept(rows, at)
	}
}

// wantAgain asks for refills that came to nothing once more.
func (l *loop) wantAgain(req request) {
	for _, refill := range req.refills {
		refill.lane.wanted = false
		l.buffer.want(refill.lane)
	}
}

func (l *loop) refilled(req request, rows []*row, at reached) {
	l.cursor.saw(at.highest)
	wanted := map[string]bool{}
	for _, refill := range req.refills {
		wanted[refill.lane.key] = refill.lane.epoch == refill.epoch
	}
	for _, row := range rows {
		if wanted[row.key] {
			l.buffer.add(row, true)
		}
	}
	for _, refill := range req.refills {
		if refill.lane.epoch == refill.epoch {
			l.buffer.refilled(refill.lane, at.covered)
		}
	}
}

func (l *loop) swept(rows []*row, at reached) {
	for _, row := range rows {
		l.buffer.add(row, false)
	}
	l.cursor.advance(at)
	l.buffer.low = l.cursor.low
	if at.unowned {
		l.unowned()
	}

	r := &l.reading
	now := time.Now()
	r.took = now.Sub(r.began)
	switch {
	case at.covered < everything:
		r.found, r.next = now, now
	case len(rows) > 0:
		r.found, r.next = now, now.Add(l.config.PollMin)
	default:
		r.next = now.Add(min(max(now.Sub(r.found)/4, l.config.PollMin), l.config.PollMax))
	}
}
