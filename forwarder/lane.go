package forwarder

import "slices"

// lane is what is in memory of one ordering key. Only its head is published;
// the others wait until it is confirmed.
//
// An excluded lane is left out of the reads of the outbox: because it is full,
// or because its head was not confirmed and its successors were dropped. A
// refill, a read of this key alone, brings it back.
type lane struct {
	key      string
	slot     int64
	head     *row
	waiting  []*row // by position
	excluded bool
	from     int64 // where a refill begins
	wanted   bool  // a refill is wanted, or under way
	reading  bool  // it is under way
	epoch    int   // changes when a refill under way is no longer wanted
}

func (l *lane) add(r *row) {
	at, _ := slices.BinarySearchFunc(l.waiting, r, byPosition)
	l.waiting = slices.Insert(l.waiting, at, r)
}

// exclude leaves the lane out of the reads; a refill will have to begin at
// position.
func (l *lane) exclude(position int64) {
	if l.excluded {
		position = min(position, l.from)
	}
	l.excluded, l.from = true, position
}
