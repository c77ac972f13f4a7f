package dispatch

import "math"

// cursor is the position up to which the outbox was read completely: no transaction can add another
// row at or below it.
//
// A transaction takes positions before it commits, so a row can appear below rows that were sent
// long ago. The cursor therefore passes a position only after every transaction has ended that may
// have taken a lower one: those that had an id when the position was first read, because a
// transaction gets its id before it takes a position. Messages do not wait for the cursor: each
// sweep reads all rows above it, except those in memory.
//
// The server reports ids only up to the highest transaction that has ended, and one with a higher
// id may still be open. After a transaction of the forwarder itself has ended, the server reports
// all lower ids.
type cursor struct {
	low     int64
	seen    int64  // the highest position that was read
	settled int64  // highest position that was read before a transaction of the forwarder got its id; the transaction has ended
	marks   []mark // in ascending order

	ceiling int64 // Reach.Ceiling of the last sweep
	era     int   // number of times that the cursor went back; a sight of an earlier era is not used
}

// Sight is the highest position that the Scheduler had read at some moment.
type Sight struct {
	sight

	tail, round sight // sights of the two walks of the lookahead
}

type sight struct {
	position int64
	era      int
}

// mark is reached by the cursor when all transactions with an id below ceiling have ended.
type mark struct {
	position int64
	ceiling  int64
}

// maxMarks limits the marks while a transaction stays open. The cursor passes a position without a
// mark later, together with a higher one.
const maxMarks = 64

// Reach describes which part of the outbox a read covered.
type Reach struct {
	Highest int64 // highest position of the rows that were returned, or left out because of a pause; 0 if there are none
	Covered int64 // all rows up to this position were returned
	Horizon int64 // sweep and lookahead: all transactions with an id below Horizon have ended
	Ceiling int64 // sweep and lookahead: highest id of a transaction that has ended, plus one

	// Pauses is set by a sweep. If it differs from Read.Pauses, the rows are read again.
	Pauses Pauses

	// Skipped is set by a lookahead: the examined rows with a key that were not returned, and for
	// each key with rows above Read.Late and up to Read.Passed, the first of these.
	Skipped []Skipped

	// End is set by a lookahead: the highest position in the outbox.
	End int64

	// More is set by a lookahead that left out rows because of a limit, or because another row of
	// their key was committed late.
	More bool
}

// Everything is Reach.Covered when a read has reached the end of the outbox.
const Everything = math.MaxInt64

// sights returns the highest position that was read, and the highest one after whose read a
// transaction of the forwarder has got its id and has ended.
func (c *cursor) sights() (seen, settled sight) { return sight{c.seen, c.era}, sight{c.settled, c.era} }

// wrote follows a transaction of the forwarder. seen is from before it got its id.
func (c *cursor) wrote(seen sight) {
	if seen.era == c.era {
		c.settled = max(c.settled, seen.position)
	}
}

// advance moves the cursor after a sweep. settled is what sights returned when the sweep began.
func (c *cursor) advance(at Reach, settled sight) {
	if at.Ceiling < c.ceiling {
		// Transaction ids have gone back: a replica that lagged behind has become the primary, and
		// will use positions again.
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

// Otherwise the cursor could not pass rows of excluded keys, because sweeps leave them out.
func (c *cursor) refillRead(position int64) { c.seen = max(c.seen, position) }

func (c *cursor) mark(position, ceiling int64) {
	if n := len(c.marks); position > c.low && n < maxMarks && (n == 0 || position > c.marks[n-1].position) {
		c.marks = append(c.marks, mark{position, ceiling})
	}
}

// rewind makes the next sweep read from position. A sweep under way moves the cursor no higher.
func (c *cursor) rewind(position int64) {
	c.era++
	c.low = min(c.low, position)
	c.seen = min(c.seen, position)
	c.settled = min(c.settled, position)
	for n := len(c.marks); n > 0 && c.marks[n-1].position > position; n-- {
		c.marks = c.marks[:n-1]
	}
}
