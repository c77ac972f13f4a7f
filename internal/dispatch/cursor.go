package dispatch

import "math"

// cursor knows the position above which the outbox must be read. Every row at
// or below it has been read, and no transaction can add another one there.
//
// A transaction takes positions before it commits, so a row can appear below
// rows that were sent long ago. The cursor therefore passes a position only
// after the end of every transaction that may have taken a lower one. These
// are the transactions that had an id when the position was seen, because a
// transaction gets its id before it takes a position. Delivery does not wait
// for the cursor: the rows above it are read again, except those in memory.
//
// The server reports ids only up to the highest transaction that has ended, but
// an open transaction may have a higher id. A transaction of the forwarder
// itself closes this gap: after its end the server reports all ids that are
// lower than its own.
type cursor struct {
	low     int64
	seen    int64  // the highest position that was read
	settled int64  // the part of seen that was read before a transaction of the forwarder took its id and ended
	marks   []mark // ascending

	ceiling int64 // of the last read
	era     int   // changes when positions that were seen before must be read again
}

// Sight is the highest position that was read at some moment.
type Sight struct {
	position int64
	era      int
}

// mark is a position that is passed when all transactions below ceiling have
// ended.
type mark struct {
	position int64
	ceiling  int64
}

// maxMarks bounds the marks that one open transaction causes. A later mark
// passes the positions in between.
const maxMarks = 64

// Reach describes the part of the outbox that one read has seen.
type Reach struct {
	Highest int64 // the highest position that was returned, or 0
	Covered int64 // all rows up to this position were returned
	Horizon int64 // all transactions below this id have ended; a sweep only
	Ceiling int64 // the id after the last transaction that has ended; a sweep only
}

// everything is Reach.Covered of a read that has reached the end of the outbox.
const everything = math.MaxInt64

// sights returns the position that was seen, and the part of it that is
// settled.
func (c *cursor) sights() (seen, settled Sight) { return Sight{c.seen, c.era}, Sight{c.settled, c.era} }

// wrote reports the end of a transaction of the forwarder that took its id
// after seen was returned by sights.
func (c *cursor) wrote(seen Sight) {
	if seen.era == c.era {
		c.settled = max(c.settled, seen.position)
	}
}

// advance takes the result of a sweep. settled was returned by sights when the
// sweep began.
func (c *cursor) advance(at Reach, settled Sight) {
	if at.Ceiling < c.ceiling {
		// Transaction ids went back: a replica that lagged behind has taken
		// over, and will use positions again.
		*c = cursor{era: c.era + 1}
	}
	c.ceiling = at.Ceiling
	if settled.era == c.era {
		c.mark(settled.position, at.Ceiling)
	}
	for len(c.marks) > 0 && c.marks[0].ceiling <= at.Horizon {
		c.low = max(c.low, min(c.marks[0].position, at.Covered))
		c.marks = c.marks[1:]
	}
	c.seen = max(c.seen, at.Highest)
}

// saw notes the highest position of a refill. Without it the cursor would stay
// where the excluded keys begin.
func (c *cursor) saw(position int64) { c.seen = max(c.seen, position) }

func (c *cursor) mark(position, ceiling int64) {
	if n := len(c.marks); position > c.low && n < maxMarks && (n == 0 || position > c.marks[n-1].position) {
		c.marks = append(c.marks, mark{position, ceiling})
	}
}

// rewind lets the next sweep read everything above position. A sweep that is
// under way does not move the cursor above position.
func (c *cursor) rewind(position int64) {
	c.era++
	c.low = min(c.low, position)
	c.seen = min(c.seen, position)
	c.settled = min(c.settled, position)
	for n := len(c.marks); n > 0 && c.marks[n-1].position > position; n-- {
		c.marks = c.marks[:n-1]
	}
}
