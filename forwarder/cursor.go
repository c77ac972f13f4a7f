package forwarder

import "math"

// cursor says from which position on the outbox must be read. What lies below
// has been read, and no transaction can add to it any more.
//
// Positions are given out before their transactions commit, so a row can
// appear below others that were sent long ago. A position is therefore passed
// only when every transaction has ended that might have taken a lower one:
// those that were running, or had not begun to write, when it was seen.
// Delivery does not wait for that. Until then the rows in between are read
// again, less those that are in memory.
//
// A writer takes its position a moment before its transaction gets the id by
// which it is waited for. It is missed if it stands still in that moment for
// as long as there is between two reads; the rescan finds its row.
type cursor struct {
	low   int64
	seen  int64  // the highest position that was read
	marks []mark // ascending

	ceiling int64 // of the last read
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
	ceiling int64 // no transaction from here on had begun
	unowned bool  // some slots have no owner
}

// everything is covered by a read that was not cut short.
const everything = math.MaxInt64

func (c *cursor) advance(r reached) {
	if r.ceiling < c.ceiling {
		// Transaction ids went back: a replica that lagged behind has taken
		// over, and positions will be given out again.
		*c = cursor{}
	}
	c.ceiling = r.ceiling
	// What the last read saw gets the ceiling of this one: a writer that had
	// its position then has its transaction id by now.
	if n := len(c.marks); c.seen > c.low && n < enoughMarks && (n == 0 || c.seen > c.marks[n-1].position) {
		c.marks = append(c.marks, mark{c.seen, r.ceiling})
	}
	for len(c.marks) > 0 && c.marks[0].ceiling <= r.horizon {
		c.low = max(c.low, min(c.marks[0].position, r.covered))
		c.marks = c.marks[1:]
	}
	c.seen = max(c.seen, r.highest)
}

// rewind has everything above position read again, by a read that begins
// after this: nothing above may be passed on account of one that is under way.
func (c *cursor) rewind(position int64) {
	c.low = min(c.low, position)
	c.seen = min(c.seen, position)
	for n := len(c.marks); n > 0 && c.marks[n-1].position > position; n-- {
		c.marks = c.marks[:n-1]
	}
}
