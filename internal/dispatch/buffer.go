package dispatch

import (
	"cmp"
	"slices"
)

// buffer contains every message that was read and whose outcome is not recorded yet.
type buffer struct {
	limit    int // the number of messages at which reading stops
	messages map[int64]*Message
	bytes    int           // without those of ahead
	groups   map[Group]int // number of messages of each group
	ready    ready
	ahead    aheadBuffer
	queues   map[string]*keyQueue
	low      int64 // copy of cursor.low: sweeps read above this position

	orphans int // number of messages of lost slots that are in flight, or whose outcome waits to be recorded

	refills []*keyQueue // queues that wanted a refill; some may not want it any more
}

func newBuffer(limit int) buffer {
	return buffer{
		limit: limit, messages: map[int64]*Message{}, queues: map[string]*keyQueue{}, groups: map[Group]int{},
		ready: newReady(), ahead: aheadBuffer{ready: newReady()},
	}
}

// queueLimit returns how many messages may wait in one key queue. A longer queue would
// use the room of the messages of other keys that are behind it in the outbox. A refill
// may exceed the limit.
func (b *buffer) queueLimit() int { return min(128, max(4, b.limit/16)) }

// add adds a message that was read. It ignores the message if the queue of its key is
// full or excluded. A refill then reads the message again.
func (b *buffer) add(m *Message, refill bool) {
	if b.messages[m.Position] != nil {
		return
	}
	if m.Key == "" {
		b.keep(m)
		b.put(m)
		return
	}
	q := b.queues[m.Key]
	switch {
	case q == nil:
		q = &keyQueue{key: m.Key, slot: m.Slot}
		b.queues[m.Key] = q
	case q.excluded && !refill:
		return // the sweep began before the key was excluded
	case len(q.waiting) >= b.queueLimit() && !refill:
		q.exclude(b.low)
		return
	}
	b.keep(m)
	m.queue = q
	if m.BlocksKey {
		q.exclude(m.SuccessorsAfter) // the table keeps the successors out of the sweeps until m is confirmed
	}
	if q.head == nil {
		q.head = m
		b.put(m)
	} else {
		q.add(m)
	}
}

func (b *buffer) keep(m *Message) {
	b.messages[m.Position] = m
	b.groups[m.group()]++
	b.resize(m, m.Size())
	if m.ahead {
		b.ahead.messages++
	}
}

// resize changes the size of the messages in memory by that of m.
func (b *buffer) resize(m *Message, by int) {
	if m.ahead {
		b.ahead.bytes += by
	} else {
		b.bytes += by
	}
}

// count returns the number of messages that were not found by a lookahead.
func (b *buffer) count() int { return len(b.messages) - b.ahead.messages }

// unload frees the payload and the metadata of a message that will not be published
// again.
func (b *buffer) unload(m *Message) {
	if b.messages[m.Position] == m {
		b.resize(m, -m.Size())
		m.Payload, m.Metadata = nil, nil
	}
}

// forget removes a message from memory, because its outcome is recorded or because it
// must be read again.
func (b *buffer) forget(m *Message) {
	if b.messages[m.Position] == m {
		b.resize(m, -m.Size())
		delete(b.messages, m.Position)
		if m.ahead {
			b.ahead.messages--
		}
		if b.groups[m.group()]--; b.groups[m.group()] == 0 {
			delete(b.groups, m.group())
		}
		if m.orphan {
			b.orphans--
		}
	}
}

// advance replaces the confirmed head of a queue by the next message of the key.
func (b *buffer) advance(q *keyQueue) {
	q.head = nil
	if len(q.waiting) > 0 {
		q.head = q.waiting[0]
		q.waiting = q.waiting[1:]
		b.put(q.head)
	}
	switch {
	case q.excluded && len(q.waiting) <= b.queueLimit()/2:
		b.wantRefill(q)
	case q.excluded:
	case q.head == nil:
		delete(b.queues, q.key)
	}
}

// dropSuccessors removes the messages behind the head from memory. A refill reads them
// again after the outcome of the head is recorded.
func (b *buffer) dropSuccessors(q *keyQueue) {
	from := min(b.low, q.head.Position)
	for _, m := range q.waiting {
		from = min(from, m.Position-1) // a message that was committed late can be below the head
		b.forget(m)
	}
	q.waiting = nil
	q.exclude(from)
	q.refillWanted = false
	q.epoch++
}

// dropAll removes the head and its successors from memory. The key stays excluded until
// a refill is wanted.
func (b *buffer) dropAll(q *keyQueue) {
	q.exclude(q.head.Position - 1)
	b.dropSuccessors(q)
	b.forget(q.head)
	q.head = nil
}

// unblock removes the head after its outcome was recorded, and wants a refill of its
// successors.
func (b *buffer) unblock(q *keyQueue) {
	b.dropSuccessors(q)
	q.head = nil
	b.wantRefill(q)
}

func (b *buffer) wantRefill(q *keyQueue) {
	if !q.refillWanted {
		q.refillWanted = true
		b.refills = append(b.refills, q)
	}
}

// refillFromStart makes the next refill of every queue begin at the start of the
// outbox. It wants a refill of every queue without messages.
func (b *buffer) refillFromStart() {
	var empty []*keyQueue
	for _, q := range b.queues {
		q.refillFrom = 0
		if q.head == nil {
			empty = append(empty, q)
		}
	}
	slices.SortFunc(empty, func(a, b *keyQueue) int { return cmp.Compare(a.key, b.key) })
	for _, q := range empty {
		b.wantRefill(q)
	}
}

// takeRefills returns at most limit of the queues that want a refill, and marks them as
// being refilled.
func (b *buffer) takeRefills(limit int) []*keyQueue {
	var taken []*keyQueue
	for len(b.refills) > 0 && len(taken) < limit {
		q := b.refills[0]
		b.refills = b.refills[1:]
		if q.refillWanted && !q.refilling && b.queues[q.key] == q {
			q.refilling = true
			taken = append(taken, q)
		}
	}
	return taken
}

// refilled ends a refill that has read the rows of the key up to position covered. The
// next refill begins there. But it never begins above the cursor, because a transaction
// may still add a row of the key.
func (b *buffer) refilled(q *keyQueue, covered int64) {
	q.refillWanted = false
	switch {
	case q.head != nil && q.head.BlocksKey: // the table kept the successors out of the refill
	case covered < Everything:
		q.refillFrom = max(q.refillFrom, min(covered, b.low))
		if len(q.waiting) <= b.queueLimit()/2 {
			b.wantRefill(q)
		}
	case q.head == nil:
		delete(b.queues, q.key)
	default:
		q.excluded = false
	}
}

// loseSlots removes the messages of slots from memory. It keeps messages that are in
// flight or have a known outcome, as orphans, until their outcome is recorded.
func (b *buffer) loseSlots(slots map[int64]bool) {
	b.ready.removeSlots(slots)
	b.ahead.ready.removeSlots(slots)
	for key, q := range b.queues {
		if slots[q.slot] {
			delete(b.queues, key)
		}
	}
	for _, m := range b.messages {
		switch {
		case !slots[m.Slot] || m.orphan:
		case m.ticket == 0 && !m.decided:
			b.forget(m)
		default:
			m.queue, m.orphan = nil, true
			b.orphans++
		}
	}
}
