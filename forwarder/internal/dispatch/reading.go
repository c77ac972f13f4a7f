package dispatch

import (
	"slices"
	"time"

	"github.com/watermill-once/once/internal/backoff"
)

const (
	refillsAtOnce = 100

	// While there are more key queues, no sweep and no lookahead begins. Stalled topics add none
	// from the half.
	maxQueues = 20_000
)

// reading is the state of the reads. At most one read is under way at a time.
type reading struct {
	busy       bool
	began      time.Time     // when the last sweep, or read of the state, began
	took       time.Duration // how long the last sweep took
	hinted     bool          // Hint was called since the last sweep began
	wasRefill  bool          // the last read was a refill
	found      time.Time     // when a sweep last returned a row or Hint was last called, whichever is later
	next       time.Time     // when the next sweep is due
	rescan     time.Time     // when the next sweep from the start of the outbox is due
	stuck      bool          // the last sweep has returned only paused rows, and there are more
	epoch      int           // changes to make the Scheduler ignore the result of the read under way
	rowSize    int           // average size of the rows of the last read, in bytes
	batchLimit backoff.Limit
	outage     outage
}

// Hint makes the next sweep begin soon, because the outbox may contain new rows.
func (s *Scheduler) Hint(now time.Time) {
	s.reading.hinted, s.lookahead.hinted = true, true
	s.reading.found = now
}

// Rescan makes the next sweep read from the start, perhaps from another database server.
func (s *Scheduler) Rescan() {
	s.reading.rescan = time.Time{}
	s.lookahead.reset()
}

func (s *Scheduler) rewind(position int64) {
	s.cursor.rewind(position)
	s.buffer.low = s.cursor.low
}

// planRead returns nil if no read can start now, for example because memory is full. Sweeps and
// refills that are due alternate.
func (s *Scheduler) planRead(now time.Time) *Read {
	r := &s.reading
	if r.busy || s.stopping || len(s.slots) == 0 || s.pausing(&r.outage, now) {
		return nil
	}
	if read := s.planLookahead(now); read != nil {
		return read
	}
	limit := min(s.config.BatchSize, s.buffer.limit-s.buffer.count())
	bytes := s.config.BufferBytes - s.buffer.bytes
	if s.config.LookaheadRows > 0 {
		bytes -= s.config.BufferBytes / aheadPart
	}
	if limit < (s.config.BatchSize+3)/4 || bytes <= 0 {
		return s.planState(now) // a settlement will make room
	}
	if s.buffer.ready.count > s.config.BatchSize/2 {
		return s.planState(now) // a read must skip the messages in memory, so it is worth its cost only when it can return many others
	}
	if r.rowSize > 0 {
		limit = max(1, min(limit, bytes/r.rowSize))
	}
	limit, bytes = r.batchLimit.Of(limit), r.batchLimit.Of(bytes)
	due := r.next
	if r.hinted {
		due = r.began.Add(min(2*r.took, s.config.PollMin)) // sweeps after hints take at most half of the time
	}
	crowded := len(s.buffer.queues) > maxQueues // a sweep adds queues, and a refill may remove some
	sweep := !crowded && !now.Before(due)
	if !sweep || !r.wasRefill {
		if read := s.planRefill(limit, bytes); read != nil {
			return read
		}
	}
	if sweep {
		return s.planSweep(now, limit, bytes)
	}
	if !crowded {
		s.wake(due)
	}
	return nil
}

// planState returns a read of the pauses after PollMax without a sweep: with a slow publisher, the
// messages in memory can last for minutes.
func (s *Scheduler) planState(now time.Time) *Read {
	r := &s.reading
	if due := r.began.Add(s.config.PollMax); now.Before(due) {
		s.wake(due)
		return nil
	}
	read := s.newRead(0, 0)
	read.State = true
	r.began = now
	return read
}

func (s *Scheduler) planSweep(now time.Time, limit, bytes int) *Read {
	r := &s.reading
	read := s.newRead(limit, bytes)
	if !now.Before(r.rescan) {
		if r.rescan.IsZero() {
			s.topics.resumeFromStart() // this sweep leaves out stalled topics
		}
		r.rescan = now.Add(s.config.RescanEvery)
		s.rewind(0)
		s.buffer.refillFromStart()
		read.Tidy = true
		if s.paused.heldKeys != nil {
			s.paused.heldKeys = nil // paused rows may have been cancelled; this sweep finds the remaining rows
			s.lookahead.reset()     // its walks begin above such rows
		}
	}
	s.wake(r.rescan)
	read.From = s.cursor.low
	_, read.settled = s.cursor.sights()
	for position, m := range s.buffer.messages {
		// A charge may have been recorded although it seems to have failed: its row then has a due
		// time. So the sweep also leaves out messages whose outcome is known.
		if position > read.From || m.Due || m.decided {
			read.Known = append(read.Known, position)
		}
	}
	s.exclude(read)
	read.Poll = !r.hinted && !read.Tidy
	r.began, r.hinted, r.wasRefill = now, false, false
	return read
}

func (s *Scheduler) exclude(read *Read) {
	for key, q := range s.buffer.queues {
		if q.excluded {
			read.Keys = append(read.Keys, key)
		}
	}
	read.Topics = s.topics.excludedNames()
	if held := s.topics.heldNames(); held != nil {
		read.Pauses.Topics = slices.Concat(read.Pauses.Topics, held)
	}
}

// planRefill returns nil if no queue has requested a refill.
func (s *Scheduler) planRefill(limit, bytes int) *Read {
	queues := s.buffer.takeRefills(refillsAtOnce)
	if len(queues) == 0 {
		return nil
	}
	read := s.newRead(min(limit, s.buffer.queueLimit()*len(queues)), bytes)
	read.Refill, read.From = true, Everything
	for _, q := range queues {
		read.refills = append(read.refills, queueEpoch{q, q.epoch})
		read.Keys = append(read.Keys, q.key)
		read.From = min(read.From, q.refillFrom)
	}
	for position := range s.buffer.messages {
		if position > read.From {
			read.Known = append(read.Known, position)
		}
	}
	s.reading.wasRefill = true
	return read
}

func (s *Scheduler) newRead(limit, bytes int) *Read {
	s.reading.busy = true
	return &Read{Limit: limit, Bytes: bytes, Slots: s.settling.readable(s.slots), Pauses: s.paused.pauses, epoch: s.reading.epoch}
}

// ReadFailed reports to the Scheduler that a read has failed with err.
func (s *Scheduler) ReadFailed(now time.Time, read *Read, err error) {
	s.endRead(read, false)
	s.endLookahead(now, read)
	if !s.stopping {
		s.fails(&s.reading.outage, Reading, err, now)
	}
	s.refillAgain(read)
}

// RowsRead reports the result of a read. For the order of rows, see [Read.Reach].
func (s *Scheduler) RowsRead(now time.Time, read *Read, rows []*Message, at Reach) {
	s.endRead(read, true)
	s.endLookahead(now, read)
	r := &s.reading
	if s.worked(&r.outage, Reading) {
		s.Rescan()
	}
	if len(rows) > 0 && !read.Lookahead {
		size := 0
		for _, m := range rows {
			size += m.Size()
		}
		r.rowSize = size / len(rows)
	}
	switch {
	case s.stopping:
		s.refillAgain(read)
	case read.Lookahead:
		s.addLookahead(now, read, rows, at)
	case read.State:
		s.setPauses(at.Pauses)
	case !read.Refill && s.setPauses(at.Pauses): // the next sweep reads the rows again
	case read.epoch != r.epoch:
		s.refillAgain(read)
	case read.Refill:
		s.addRefill(read, rows, at)
	default:
		s.addSweep(now, read, rows, at)
	}
}

func (s *Scheduler) endRead(read *Read, succeeded bool) {
	s.reading.busy = false
	for _, refill := range read.refills {
		refill.queue.refilling = false
	}
	s.reading.batchLimit.Did(succeeded)
}

// refillAgain is for a read whose result was ignored.
func (s *Scheduler) refillAgain(read *Read) {
	for _, refill := range read.refills {
		refill.queue.refillWanted = false
		s.buffer.wantRefill(refill.queue)
	}
}

func (s *Scheduler) addRefill(read *Read, rows []*Message, at Reach) {
	s.cursor.refillRead(at.Highest)
	valid := make(map[string]bool, len(read.refills))
	for _, refill := range read.refills {
		valid[refill.queue.key] = refill.queue.epoch == refill.epoch
	}
	for _, m := range s.paused.keep(rows) {
		if valid[m.Key] {
			s.buffer.add(m, true)
		}
	}
	for _, refill := range read.refills {
		if q := refill.queue; q.epoch == refill.epoch {
			covered := at.Covered
			if s.paused.held(q.key, covered) {
				covered = Everything // all later messages of the key wait for the pause to end
			}
			s.buffer.refilled(q, covered)
		}
	}
}

func (s *Scheduler) addSweep(now time.Time, read *Read, rows []*Message, at Reach) {
	found := len(rows)
	rows = s.paused.keep(rows)
	for _, m := range rows {
		s.buffer.add(m, false)
	}
	s.cursor.advance(at, read.settled)
	s.buffer.low = s.cursor.low

	r := &s.reading
	r.took = now.Sub(r.began)
	s.lookahead.swept(now, at)
	switch {
	case at.Covered < Everything && len(rows) == 0 && found > 0:
		r.stuck, r.found, r.next = true, now, now.Add(s.config.PollMin)
	case at.Covered < Everything:
		r.found, r.next = now, now
	case len(rows) > 0:
		r.found, r.next = now, now.Add(s.config.PollMin)
	default:
		r.next = now.Add(min(max(now.Sub(r.found)/4, s.config.PollMin), s.config.PollMax))
	}
}
