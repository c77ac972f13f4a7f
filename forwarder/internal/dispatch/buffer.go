package dispatch

import (
	"cmp"
	"container/heap"
	"slices"
)

// buffer contains the messages whose outcomes are not recorded yet.
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

// With a longer queue, less memory would be left for other keys. A refill may exceed the limit.
func (b *buffer) queueLimit() int { return min(128, max(4, b.limit/16)) }

// add ignores a message whose queue is full or excluded. A refill reads it again later.
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

// delta is negative if m has become smaller. What lookaheads have found counts separately.
func (b *buffer) resize(m *Message, delta int) {
	if m.ahead {
		b.ahead.bytes += delta
	} else {
		b.bytes += delta
	}
}

func (b *buffer) count() int { return len(b.messages) - b.ahead.messages }

// unload frees what a message that will not be published again does not need.
func (b *buffer) unload(m *Message) {
	if b.messages[m.Position] == m {
		b.resize(m, -m.Size())
		m.Payload, m.Metadata = nil, nil
	}
}

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

// dropSuccessors drops what waits for the head, until its outcome is recorded.
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

// dropAll excludes the key, and requests no refill.
func (b *buffer) dropAll(q *keyQueue) {
	q.exclude(q.head.Position - 1)
	b.dropSuccessors(q)
	b.forget(q.head)
	q.head = nil
}

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

// refillFromStart makes the next refill of each queue read from the start of the outbox. Queues
// without messages also request one.
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

// takeRefills marks at most limit queues that have requested a refill as being refilled.
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

// refilled ends a refill that has read the key up to covered. The next refill begins there, or at
// the cursor if that is lower: above it, a transaction may still add a row of the key.
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

// loseSlots drops the messages of the given slots. Those in flight, or with a known outcome, become
// orphans until it is recorded.
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

// keyQueue contains the messages of one ordering key in memory. Only the head can be published; the
// others wait until it is confirmed.
//
// A key becomes excluded when its queue is full, or the messages behind its head are dropped.
// Sweeps leave out its rows, until a refill has read all of them.
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

// exclude makes sweeps leave out the key. The next refill reads above position, or the lower one of
// an earlier call.
func (q *keyQueue) exclude(position int64) {
	if q.excluded {
		position = min(position, q.refillFrom)
	}
	q.excluded, q.refillFrom = true, position
}

// ready contains the messages that may be published, by topic in the order of positions.
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

// take removes and returns the message with the lowest position of the topics in may, or nil.
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
