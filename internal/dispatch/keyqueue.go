package dispatch

import "slices"

// keyQueue contains the messages of one ordering key that are in memory. Only the head
// is published. The others wait until the head is confirmed.
//
// A key is excluded if its queue is full, or if the messages behind its head were
// removed from memory. Sweeps of the outbox leave out excluded keys. A refill reads
// only such keys, and ends the exclusion when it has read all their rows.
type keyQueue struct {
	key     string
	slot    int64
	head    *Message
	waiting []*Message // in ascending order of position

	excluded     bool
	refillFrom   int64 // the next refill reads rows above this position
	refillWanted bool  // stays true while the refill is under way
	refilling    bool  // a refill is under way
	epoch        int   // changes when the result of the refill under way must be ignored
}

func (q *keyQueue) add(m *Message) {
	at, _ := slices.BinarySearchFunc(q.waiting, m, byPosition)
	q.waiting = slices.Insert(q.waiting, at, m)
}

// exclude makes sweeps leave out the key. The next refill reads above position, or
// above a lower position that an earlier call has set.
func (q *keyQueue) exclude(position int64) {
	if q.excluded {
		position = min(position, q.refillFrom)
	}
	q.excluded, q.refillFrom = true, position
}
