package forwarder

import "math"

// cursor says from which position on the outbox must be read. What lies below
// has been read, and no transaction can add to it any more.
//
// Positions are given out before their transactions commit, so a row can
// appear below others that were sent long ago. A position is therefore passed
// only when every transaction has ended that might have taken a lower one:
// those that had an id when it was seen, as every transaction has that takes a
// position. Delivery does not wait for that. Until then the rows in between are
// read again, less those that are in memory.
//
// What the server tells of ids ends at the highest one that has ended, and who
// writes may have a higher one. A transaction of the forwarder's own brings it
// further: when it has ended, all ids are told that were given out before it
// had one.
type cursor struct {
	low     int64
	seen    int64  // the highest position that was read
	settled int64  // of it, what was seen before a transaction of ours that has ended took its id
	marks   []mark // ascending

	ceiling int64 // of the last read
	era     int   // changes when what was seen does not count any more
}

// sight is a position up to which something is known, in an era of the cursor.
type sight struct {
	position int64
	era      int
}

// mark is a position that is passed when all transactions below ceiling have
// ended.
type mark struct {
	position int64
	ceiling  int64
}

// enoughMarks bounds their number while a transaction stays open. Further
// positions are passed by a later mark.
const enoughMarks = 64

// reached is what one read has seen.
type reached struct {
	highest int64 // position that was returned, 0 if none was
	covered int64 // all positions up to here were returned
	horizon int64 // all transactions below have ended
	ceiling int64 // behind the last transaction that has ended
	unowned bool  // some slots have no owner

	settled sight // of the cursor, when the read began
}

// everything is covered by a read that was not cut short.
const everything = math.MaxInt64

// sights returns what is seen now, and what of it is settled.
func (c *cursor) sights() (seen, settled sight) { return sight{c.seen, c.era}, sight{c.settled, c.era} }

// wrote notes that a transaction of ours has ended that took its id after seen
// was.
func (c *cursor) wrote(seen sight) {
	if seen.era == c.era {
		c.settled = max(c.settled, seen.position)
	}
}

func (c *cursor) advance(r reached) {
	if r.ceiling < c.ceiling {
		// Transaction ids went back: a replica that lagged behind has taken
		// over, and positions will be given out again.
		*c = cursor{era: c.era + 1}
	}
	c.ceiling = r.ceiling
	if r.settled.era == c.era {
		c.mark(r.settled.position, r.ceiling)
	}
	for len(c.marks) > 0 && c.marks[0].ceiling <= r.horizon {
		c.low = max(c.low, min(c.marks[0].position, r.covered))
		c.marks = c.marks[1:]
	}
	c.seen = max(c.seen, r.highest)
}

// saw notes a position that a refill has read: without it the cursor would
// stay where the keys that are left out of its reads begin.
func (c *cursor) saw(position int64) { c.seen = max(c.seen, position) }

func (c *cursor) mark(position, ceiling int64) {
	if n := len(c.marks); position > c.low && n < enoughMarks && (n == 0 || position > c.marks[n-1].position) {
		c.marks = append(c.marks, mark{position, ceiling})
	}
}

// rewind has everything above position read again, by a read that begins
// after this: nothing above may be passed on account of one that is under way.
func (c *cursor) rewind(position int64) {
	c.era++
	c.low = min(c.low, position)
	c.seen = min(c.seen, position)
	c.settled = min(c.settled, position)
	for n := len(c.marks); n > 0 && c.marks[n-1].position > position; n-- {
		c.marks = c.marks[:n-1]
	}
}
