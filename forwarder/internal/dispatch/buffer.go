package dispatch

import (
	"cmp"
	"container/heap"
	"slices"
)

// buffer contains the messages that were read and whose outcomes are not recorded yet.
type buffer struct {
	limit    int // reading stops when the buffer has this many messages
	messages map[int64]*Message
	bytes    int           // size of payload and metadata of the messages, without the messages in ahead
	groups   map[Group]int // number of messages of each group
	ready    ready
	ahead    aheadBuffer
	queues   map[string]*keyQueue
	low      int64 // copy of cursor.low; sweeps read the rows above this position

	orphans int // messages of lost slots that are in flight, or whose outcomes are not recorded yet

	refills []*keyQueue // queues that have requested a refill; some of them may no longer need it
}

func newBuffer(limit int) buffer {
	return buffer{
		limit: limit, messages: map[int64]*Message{}, queues: map[string]*keyQueue{}, groups: map[Group]int{},
		ready: newReady(), ahead: aheadBuffer{ready: newReady()},
	}
}

// queueLimit returns the maximum number of waiting messages of one key queue. With a
// longer queue, less memory would be left for other keys. A refill may exceed the
// limit.
func (b *buffer) queueLimit() int { return min(128, max(4, b.limit/16)) }

// add adds a message that was read. If a sweep or a lookahead has read m, and the queue
// of its key is full or excluded, add ignores m, and a refill reads it again later.
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

// resize corrects the counted size of the messages in memory after the size of m has
// changed. delta is the change in bytes, and is negative if m has become
// smaller. Messages that a lookahead has found are counted separately.
func (b *buffer) resize(m *Message, delta int) {
	if m.ahead {
		b.ahead.bytes += delta
	} else {
		b.bytes += delta
	}
}

// count returns the number of messages in memory, without those that lookaheads have
// found.
func (b *buffer) count() int { return len(b.messages) - b.ahead.messages }

// unload frees the payload and the metadata of a message that will not be published
// again.
func (b *buffer) unload(m *Message) {
	if b.messages[m.Position] == m {
		b.resize(m, -m.Size())
		m.Payload, m.Metadata = nil, nil
	}
}

// forget removes a message from memory, because its outcome is recorded or because its
// row must be read again.
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

// advance replaces the confirmed head of a queue with the next message of the key.
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

// dropSuccessors removes from memory all messages that wait for the head. After the
// outcome of the head is recorded, a refill reads them again.
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

// dropAll removes the head and its successors from memory. It excludes the key, and
// requests no refill.
func (b *buffer) dropAll(q *keyQueue) {
	q.exclude(q.head.Position - 1)
	b.dropSuccessors(q)
	b.forget(q.head)
	q.head = nil
}

// unblock removes the head after its outcome was recorded. It requests a refill, which
// reads the successors again.
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

// refillFromStart makes the next refill of each queue read from the start of the
// outbox. For a queue without messages, it also requests a refill.
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

// takeRefills returns at most limit queues that have requested a refill, and marks them
// as being refilled.
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

// refilled ends a refill that has read all rows of the key up to the position covered.
// The next refill begins at this position, or at the cursor if the cursor is lower: above
// the cursor, a transaction may still add a row of the key.
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

// loseSlots removes the messages of the given slots from memory. Messages that are in
// flight or whose outcome is known become orphans: they stay until their outcome is
// recorded.
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

// keyQueue contains the messages of one ordering key that are in memory. Only the head
// can be published. The other messages wait until the head is confirmed.
//
// A key becomes excluded when its queue is full, or when the messages behind its head
// are removed from memory. Sweeps leave out the rows of excluded keys. A refill reads
// them. When the refill has read all rows of the key, the key is no longer excluded.
type keyQueue struct {
	key     string
	slot    int64
	head    *Message
	waiting []*Message // in ascending order of position

	excluded     bool
	refillFrom   int64 // the next refill reads rows above this position
	refillWanted bool  // remains true while the refill is under way
	refilling    bool  // a refill is under way
	epoch        int   // increased to make the Scheduler ignore the result of the refill under way
}

func (q *keyQueue) add(m *Message) {
	at, _ := slices.BinarySearchFunc(q.waiting, m, byPosition)
	q.waiting = slices.Insert(q.waiting, at, m)
}

// exclude makes sweeps leave out the key. The next refill reads the rows above
// position. If an earlier call has set a lower position, the lower position applies.
func (q *keyQueue) exclude(position int64) {
	if q.excluded {
		position = min(position, q.refillFrom)
	}
	q.excluded, q.refillFrom = true, position
}

// ready contains the messages that may be published. The messages of each topic are
// ordered by position.
type ready struct {
	topics map[string]*messageHeap
	count  int
}

func newReady() ready { return ready{topics: map[string]*messageHeap{}} }

func (r *ready) put(m *Message) {
	h := r.topics[m.Topic]
	if h == nil {
		h = &messageHeap{}
		r.topics[m.Topic] = h
	}
	heap.Push(h, m)
	r.count++
}

// take removes and returns the message with the lowest position. It considers only
// topics for which may(topic) is true. It returns nil if these topics have no message.
func (r *ready) take(may func(topic string) bool) *Message {
	var best *messageHeap
	for topic, h := range r.topics {
		if (best == nil || (*h)[0].Position < (*best)[0].Position) && may(topic) {
			best = h
		}
	}
	if best == nil {
		return nil
	}
	m := heap.Pop(best).(*Message) //nolint:forcetypeassert // messageHeap contains nothing else
	if len(*best) == 0 {
		delete(r.topics, m.Topic)
	}
	r.count--
	return m
}

func (r *ready) removeSlots(slots map[int64]bool) {
	for topic, h := range r.topics {
		before := len(*h)
		*h = slices.DeleteFunc(*h, func(m *Message) bool { return slots[m.Slot] })
		r.count -= before - len(*h)
		heap.Init(h)
		if len(*h) == 0 {
			delete(r.topics, topic)
		}
	}
}

type messageHeap []*Message

func (h messageHeap) Len() int           { return len(h) }
func (h messageHeap) Less(i, j int) bool { return h[i].Position < h[j].Position }
func (h messageHeap) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *messageHeap) Push(x any)        { *h = append(*h, x.(*Message)) } //nolint:forcetypeassert // see take
func (h *messageHeap) Pop() any {
	last := len(*h) - 1
	m := (*h)[last]
	(*h)[last] = nil
	*h = (*h)[:last]
	return m
}
