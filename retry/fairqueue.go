package retry

import (
	"sync"

	"github.com/watermill-once/once/internal/parked"
)

// fairQueue contains claimed messages that wait for a free handler. The tenants take
// turns, and each turn returns one message. The messages of a tenant with few messages
// therefore do not wait until all messages of another tenant are handled.
type fairQueue struct {
	closing <-chan struct{} // closed when the consumer shuts down

	mu     sync.Mutex
	change sync.Cond
	rows   map[parked.TenantTurn][]parked.Claimed
	turns  []parked.TenantTurn // tenants that have messages, in the order of their turns
	length int
	closed bool
}

func newFairQueue(closing <-chan struct{}) *fairQueue {
	q := &fairQueue{closing: closing, rows: map[parked.TenantTurn][]parked.Claimed{}}
	q.change.L = &q.mu
	return q
}

func (q *fairQueue) add(c parked.Claimed) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.rows[c.Turn]) == 0 {
		q.turns = append(q.turns, c.Turn)
	}
	q.rows[c.Turn] = append(q.rows[c.Turn], c)
	q.length++
	q.change.Signal()
}

// next waits for a message, and returns it. It returns false when the queue is closed
// and empty. During a shutdown it returns false even if the queue contains messages.
// The fetcher releases these messages, perhaps a little later, because it may be busy
// with another database operation.
func (q *fairQueue) next() (c parked.Claimed, ok bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for q.length == 0 && !q.closed {
		q.change.Wait()
	}
	select {
	case <-q.closing:
		return parked.Claimed{}, false
	default:
	}
	if q.length == 0 {
		return parked.Claimed{}, false
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

// clear empties the queue and returns the claims of its messages.
func (q *fairQueue) clear() (left []*parked.Claim) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, turn := range q.turns {
		for _, c := range q.rows[turn] {
			left = append(left, c.Claim)
		}
	}
	q.rows, q.turns, q.length = map[parked.TenantTurn][]parked.Claimed{}, nil, 0
	return left
}

// close wakes all goroutines that wait in the method next.
func (q *fairQueue) close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.closed = true
	q.change.Broadcast()
}
