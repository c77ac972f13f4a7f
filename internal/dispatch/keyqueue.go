package dispatch

import "slices"

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
