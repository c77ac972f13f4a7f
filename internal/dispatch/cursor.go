package dispatch

import "math"

// cursor is the position above which the outbox must be read. Every row at or below it
// has been read, and no transaction can add another row there.
//
// A transaction takes positions before it commits. So a row can appear below rows that
// were sent long ago. The cursor therefore passes a position only after every
// transaction that may have taken a lower one has ended. These are the transactions
// that had an id when the position was first read, because a transaction gets its id
// before it takes a position. Delivery does not wait for the cursor: each sweep reads
// the rows above it again, except those in memory.
//
// The server reports ids only up to the highest transaction that has ended, but a
// transaction with a higher id may be open. The forwarder's own transactions solve
// this. When one has ended, the server reports all ids that are lower than its id.
type cursor struct {
	low     int64
	seen    int64  // the highest position that was read
	settled int64  // the part of seen that was read before a transaction of the forwarder got its id; this transaction has ended
	marks   []mark // in ascending order

	ceiling int64 // Reach.Ceiling of the last sweep
	era     int   // increases when positions below seen must be read again
}

// Sight is the highest position that had been read at some moment.
type Sight struct {
	sight

	tail, round sight // of the cursors of lookaheads
}

type sight struct {
	position int64
	era      int
}

// mark is a position that the cursor passes when all transactions with an id below
// ceiling have ended.
type mark struct {
	position int64
	ceiling  int64
}

// maxMarks limits how many marks one open transaction can cause. Positions without a
// mark are passed together with a later mark.
const maxMarks = 64

// Reach describes which part of the outbox a read covered.
type Reach struct {
	Highest int64 // the highest position that was returned or left out because of a pause, or 0
	Covered int64 // all rows up to this position were returned
	Horizon int64 // sweep and lookahead: all transactions with a lower id have ended
	Ceiling int64 // sweep and lookahead: one more than the highest id of a transaction that has ended

	// Pauses is set by a sweep: the topics and tenants that are paused now. If they
	// are not those of Read.Pauses, the rows are read again.
	Pauses Pauses

	// Skipped is set by a lookahead: the rows with a key that it has examined and that
	// are not in the result, and at least one row of each key that Read.Passed tells about.
	Skipped []Skipped

	// End is set by a lookahead: the highest position in the outbox.
	End int64

	// More is set by a lookahead: it has left out rows because of a limit, or because of
	// a row of their key that was committed late.
	More bool
}

// Everything is the value of Reach.Covered when a read has reached the end of the
// outbox.
const Everything = math.MaxInt64

// sights returns the highest position that was read, and the highest one that is known
// to be read before a transaction of the forwarder, which has ended, got its id.
func (c *cursor) sights() (seen, settled sight) { return sight{c.seen, c.era}, sight{c.settled, c.era} }

// wrote tells the cursor that a transaction of the forwarder has ended. The transaction
// got its id after sights had returned seen.
func (c *cursor) wrote(seen sight) {
	if seen.era == c.era {
		c.settled = max(c.settled, seen.position)
	}
}

// advance moves the cursor after a sweep. settled was returned by sights when the sweep
// began.
func (c *cursor) advance(at Reach, settled sight) {
	if at.Ceiling < c.ceiling {
		// Transaction ids went back. So a replica that lagged behind has become the
		// primary, and will use positions again.
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

// saw records the highest position that a refill has read. Otherwise the cursor could
// not pass the rows of excluded keys.
func (c *cursor) saw(position int64) { c.seen = max(c.seen, position) }

func (c *cursor) mark(position, ceiling int64) {
	if n := len(c.marks); position > c.low && n < maxMarks && (n == 0 || position > c.marks[n-1].position) {
		c.marks = append(c.marks, mark{position, ceiling})
	}
}

// rewind makes the next sweep read everything above position. A sweep that is under way
// does not move the cursor above position.
func (c *cursor) rewind(position int64) {
	c.era++
	c.low = min(c.low, position)
	c.seen = min(c.seen, position)
	c.settled = min(c.settled, position)
	for n := len(c.marks); n > 0 && c.marks[n-1].position > position; n-- {
		c.marks = c.marks[:n-1]
	}
}
