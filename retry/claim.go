package retry

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/watermill-once/once/internal/parkedrows"
)

const (
	// reuseDue is how long a result of findDue may be reused after a claim that got as many rows as
	// it wanted. A message that this process stores in the meantime ends the reuse.
	reuseDue = 50 * time.Millisecond

	// lookAgain is the pause after a failed search in the inbox, or a failed claim of a crashed
	// message.
	lookAgain = time.Second
)

// fetch claims as many due rows as the fetcher has room for. If again is true, call it again at
// once.
func (f *fetcher) fetch(ctx context.Context) (again bool) {
	ctx, cancel := f.withLeaseTimeout(ctx)
	defer cancel()
	f.moreDue = true
	room := f.room()
	if f.full(room) {
		return false
	}
	if err := f.releaseUnknown(ctx); err != nil {
		f.report(ctx, err)
		return false
	}
	rows := f.limit.Of(room)
	if f.probing {
		rows = 1
	}
	if rows = f.limiter.room(rows, f.queue.len()); rows == 0 {
		return false
	}
	if room = f.buffer.fit(rows); room == 0 {
		return false
	}
	sel := parkedrows.Select{
		Consumer: f.consumer, Topic: f.topic, Owner: f.owner, Limit: room, Bytes: f.buffer.free(), Lease: f.config.Lease,
		Order: parkedrows.KeyOrder(f.config.KeyOrder), Keep: f.stored.Keep, Turns: &f.turns,
		PerTenant: f.stored.PerTenant,
	}
	due, reused, err := f.findDue(ctx, sel)
	if err != nil {
		f.requestIsolation(false)
		f.report(ctx, err)
		return false
	}
	sel.Due = due
	due.Crashed = due.Crashed && time.Since(f.missedCrash) >= lookAgain
	f.requestIsolation(due.Crashed)
	switch {
	case due.Crashed && f.gate.enterAlone():
		// A crashed message is claimed alone, so that the next crash can only be caused
		// by this message.
		sel.Crashed, sel.Limit = true, 1
	case !due.Fresh():
		if time.Since(f.missedCrash) >= lookAgain { // before that time, it is not certain that the database works again
			f.report(ctx, nil)
		}
		f.moreDue = due.Crashed
		return false
	case !f.gate.enter(room, f.wake):
		return false
	}
	before, partly := len(f.inFlight), due.Partial()
	began := time.Now()
	claimed, err := f.store.Claim(ctx, sel)
	if f.buffer.tooLarge(err) {
		f.gate.leave(sel.Limit)
		return true
	}
	// A slow claim counts as a failure: its leases have begun with it, and no other lease can be
	// renewed during it.
	f.limit.Did(err == nil && time.Since(began) < f.config.Lease/3)
	f.report(ctx, err)
	f.accept(claimed, err)
	missed := sel.Crashed && len(claimed) == 0
	if missed { // another process has locked the crashed message, so other messages need not wait for it
		f.missedCrash = time.Now()
		f.requestIsolation(false)
	}
	f.gate.leave(sel.Limit - (len(f.inFlight) - before))
	if missed {
		return err == nil
	}
	// If the limit of bytes was reached, the last tenants may have got no row. A new query finds
	// them first.
	if err == nil && len(claimed) == rows && !partly && !sel.Crashed {
		f.due = due
	}
	// A reused result does not contain tenants whose messages have arrived since.
	f.moreDue = err != nil || len(claimed) == sel.Limit || partly || reused || due.Full
	// If other processes have locked all due rows, the next query finds the same rows, so the loop
	// must get a chance to renew leases.
	return err == nil && (len(claimed) == room || partly && len(claimed) > 0 || reused) && !sel.Crashed
}

// full reports whether a fetch must wait until one statement can claim many rows. A probe is one
// row.
func (f *fetcher) full(room int) bool {
	many := f.stored.Ahead / 2
	switch {
	case f.probing:
		return room <= 0 || f.queue.len() > 0
	case f.limiter.isLimited(): // the limit decides how many
		return room <= 0
	}
	return room <= 0 || room < many || f.queue.len() > many
}

// accept adds the claimed messages to the queue. If the commit of the claim has an unknown outcome,
// releaseUnknown releases their rows later.
func (f *fetcher) accept(claimed []parkedrows.Claimed, err error) {
	f.buffer.observe(claimed)
	for _, c := range claimed {
		if err != nil {
			f.unknown = append(f.unknown, c.Claim)
		} else {
			f.enqueue(c)
		}
	}
}

func (f *fetcher) enqueue(c parkedrows.Claimed) {
	if c.Crashes > 1 {
		f.instruments.crashes.Add(1, 0)
	}
	f.inFlight[c.Claim] = struct{}{}
	f.buffer.bytes += c.Size
	f.queue.add(c)
}

// releaseUnknown does not change rows that were not claimed, or that were claimed again.
func (f *fetcher) releaseUnknown(ctx context.Context) error {
	if len(f.unknown) == 0 {
		return nil
	}
	if err := f.store.HandBack(ctx, f.unknown); err != nil && !errors.Is(err, parkedrows.ErrClaimLost) {
		return err
	}
	f.unknown = nil
	return nil
}

// findDue returns the tenants that have due rows. reused is true for an earlier result.
func (f *fetcher) findDue(ctx context.Context, sel parkedrows.Select) (due *parkedrows.Due, reused bool, err error) {
	due, f.due = f.due, nil
	if due != nil && time.Since(f.dueAt) < reuseDue {
		return due, true, nil
	}
	f.dueAt = time.Now()
	due, err = f.poll.Due(ctx, sel)
	return due, false, err
}

func (f *fetcher) requestIsolation(wanted bool) {
	switch {
	case wanted && !f.isolating:
		f.gate.request(f.wake)
	case !wanted && f.isolating:
		f.gate.withdraw(f.wake)
	}
	f.isolating = wanted
}

// fairQueue contains claimed messages that wait for a free handler. The tenants take turns, so the
// messages of a small tenant do not wait for all messages of a large one.
type fairQueue struct {
	closing <-chan struct{} // closed when the consumer shuts down

	mu     sync.Mutex
	change sync.Cond
	rows   map[parkedrows.TenantTurn][]parkedrows.Claimed
	turns  []parkedrows.TenantTurn // tenants that have messages, in the order of their turns
	length int
	closed bool
}

func newFairQueue(closing <-chan struct{}) *fairQueue {
	q := &fairQueue{closing: closing, rows: map[parkedrows.TenantTurn][]parkedrows.Claimed{}}
	q.change.L = &q.mu
	return q
}

func (q *fairQueue) add(c parkedrows.Claimed) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.rows[c.Turn]) == 0 {
		q.turns = append(q.turns, c.Turn)
	}
	q.rows[c.Turn] = append(q.rows[c.Turn], c)
	q.length++
	q.change.Signal()
}

// next waits for a message. It returns false when the queue is closed and empty, and during a
// shutdown, when the fetcher releases the messages in the queue.
func (q *fairQueue) next() (c parkedrows.Claimed, ok bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for q.length == 0 && !q.closed {
		q.change.Wait()
	}
	select {
	case <-q.closing:
		return parkedrows.Claimed{}, false
	default:
	}
	if q.length == 0 {
		return parkedrows.Claimed{}, false
	}
	turn := q.turns[0]
	q.turns = q.turns[1:]
	rows := q.rows[turn]
	if len(rows) == 1 {
		delete(q.rows, turn)
	} else {
		q.rows[turn] = rows[1:]
		q.turns = append(q.turns, turn)
	}
	q.length--
	return rows[0], true
}

func (q *fairQueue) len() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.length
}

func (q *fairQueue) clear() (left []*parkedrows.Claim) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, turn := range q.turns {
		for _, c := range q.rows[turn] {
			left = append(left, c.Claim)
		}
	}
	q.rows, q.turns, q.length = map[parkedrows.TenantTurn][]parkedrows.Claimed{}, nil, 0
	return left
}

func (q *fairQueue) close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.closed = true
	q.change.Broadcast()
}

// buffer counts the bytes of claimed messages in memory.
type buffer struct {
	limit   int
	bytes   int
	rowSize int // estimated size of the next row: the largest recent size
}

func (b *buffer) free() int { return b.limit - b.bytes }

// fit returns how many of rows the buffer has room for. An empty buffer has room for a row of any
// size.
func (b *buffer) fit(rows int) int {
	switch free := b.free(); {
	case free <= 0:
		return 0
	case b.rowSize > 0:
		return max(1, min(rows, free/b.rowSize))
	}
	return rows
}

// After a large row, the estimate decreases slowly, because the next rows are often large, too.
func (b *buffer) observe(rows []parkedrows.Claimed) {
	b.rowSize /= 2
	for _, c := range rows {
		b.rowSize = max(b.rowSize, c.Size)
	}
}

// tooLarge reports whether a claim failed because a row was too large, and makes the next claim
// take fewer rows.
func (b *buffer) tooLarge(err error) bool {
	large, ok := errors.AsType[*parkedrows.LargeError](err)
	if ok {
		b.rowSize = large.Size
	}
	return ok
}
