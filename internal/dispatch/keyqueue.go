package dispatch

import "slices"

// keyQueue contains the messages of one ordering key that are in memory. Only
// the head is published; the others wait until the head is confirmed.
//
// An excluded key is left out of the sweeps of the outbox, because its queue is
// full or because the successors of its head were dropped. A refill, which
// reads only this key, brings the key back.
type keyQueue struct {
	key     string
	slot    int64
	head    *Message
	waiting []*Message // ascending by position

	excluded     bool
	refillFrom   int64 // the next refill reads above this position
	refillWanted bool  // also while a refill is under way
	refilling    bool  // a refill is under way
	epoch        int   // changes when the result of a refill under way must be ignored
}

func (q *keyQueue) add(m *Message) {
	at, _ := slices.BinarySearchFunc(q.waiting, m, byPosition)
	q.waiting = slices.Insert(q.waiting, at, m)
}

// exclude leaves the key out of the sweeps. The next refill reads above
// position, or above a lower position that was given before.
func (q *keyQueue) exclude(position int64) {
	if q.excluded {
		position = min(position, q.refillFrom)
	}
	q.excluded, q.refillFrom = true, position
}
