package retry

import (
	"sync"

	"github.com/watermill-once/once/internal/parked"
)

// line is claimed messages that are to be handed out. Who has few of them does
// not wait for all of those who have many: one of each goes in turn.
type line struct {
	closing <-chan struct{} // closed when no more are to be handed out

	mu     sync.Mutex
	change sync.Cond
	rows   map[parked.Turn][]parked.Claimed
	turns  []parked.Turn // that have some, the next one first
	length int
	closed bool
}

func newLine(closing <-chan struct{}) *line {
	l := &line{closing: closing, rows: map[parked.Turn][]parked.Claimed{}}
	l.change.L = &l.mu
	return l
}

func (l *line) add(c parked.Claimed) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.rows[c.Turn]) == 0 {
		l.turns = append(l.turns, c.Turn)
	}
	l.rows[c.Turn] = append(l.rows[c.Turn], c)
	l.length++
	l.change.Signal()
}

// next waits for a message. It returns none when the line is closed and empty,
// and when it is closing: what is left is to be given back, though whoever does
// that may be busy.
func (l *line) next() (c parked.Claimed, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for l.length == 0 && !l.closed {
		l.change.Wait()
	}
	select {
	case <-l.closing:
		return parked.Claimed{}, false
	default:
	}
	if l.length == 0 {
		return parked.Claimed{}, false
	}
	turn := l.turns[0]
	l.turns = l.turns[1:]
	rows := l.rows[turn]
	if len(rows) == 1 {
		delete(l.rows, turn)
	} else {
		l.rows[turn] = rows[1:]
		l.turns = append(l.turns, turn)
	}
	l.length--
	return rows[0], true
}

func (l *line) len() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.length
}

// clear returns what was not handed out.
func (l *line) clear() (left []*parked.Claim) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, turn := range l.turns {
		for _, c := range l.rows[turn] {
			left = append(left, c.Claim)
		}
	}
	l.rows, l.turns, l.length = map[parked.Turn][]parked.Claimed{}, nil, 0
	return left
}

// close lets those go who wait for a message.
func (l *line) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	l.change.Broadcast()
}
