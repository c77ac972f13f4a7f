package dispatch

import "math"

// cursor is the position up to which the outbox was read completely. Every row at or
// below the cursor has been read, and no transaction can add another row there. Reading
// continues above the cursor.
//
// A transaction takes positions before it commits. So a row can appear at a position
// below rows that were sent long ago. The cursor therefore passes a position only after
// every transaction that may have taken a lower position has ended. These are the
// transactions that had an id when the position was first read, because a transaction
// gets its id before it takes a position. Messages do not wait for the cursor: each
// sweep reads all rows above it, except the rows in memory.
//
// The server reports ids only up to the highest transaction that has ended. A
// transaction with a higher id may still be open. The forwarder's own transactions
// solve this problem: after one of them has ended, the server reports all lower ids.
type cursor struct {
	low     int64
	seen    int64  // the highest position that was read
	settled int64  // highest position that was read before a transaction of the forwarder got its id; the transaction has ended
	marks   []mark // in ascending order

	ceiling int64 // Reach.Ceiling of the last sweep
	era     int   // number of times that the cursor went back; a sight of an earlier era is not used
}

// Sight records the highest position that the Scheduler had read at some moment.
type Sight struct {
	sight

	tail, round sight // sights of the two walks of the lookahead
}

type sight struct {
	position int64
	era      int
}

// mark is a position that the cursor has not reached yet. The cursor moves to this
// position when all transactions with an id below ceiling have ended.
type mark struct {
	position int64
	ceiling  int64
}

// maxMarks is the maximum number of marks while a transaction stays open. If a position
// gets no mark because of this limit, the cursor passes it later, together with a
// higher position that has a mark.
const maxMarks = 64

// Reach describes which part of the outbox a read covered.
type Reach struct {
	Highest int64 // highest position of the rows that were returned, or left out because of a pause; 0 if there are none
	Covered int64 // all rows up to this position were returned
	Horizon int64 // sweep and lookahead: all transactions with an id below Horizon have ended
	Ceiling int64 // sweep and lookahead: highest id of a transaction that has ended, plus one

	// Pauses is set by a sweep. It contains the topics and tenants that are paused now. If
	// they differ from Read.Pauses, the Scheduler reads the rows again.
	Pauses Pauses

	// Skipped is set by a lookahead. It contains the examined rows that have a key and were
	// not returned. For each key with rows above Read.Late and up to Read.Passed, it also
	// contains the first of these rows.
	Skipped []Skipped

	// End is set by a lookahead. It is the highest position in the outbox.
	End int64

	// More is set by a lookahead. It is true if the lookahead left out rows because of a
	// limit, or because another row of their key was committed late.
	More bool
}

// Everything is the value of Reach.Covered when a read has reached the end of the
// outbox.
const Everything = math.MaxInt64

// sights returns two positions. The result seen is the highest position that was read.
// The result settled is the highest position that was read long enough ago: after it was
// read, a transaction of the forwarder has got its id and has ended.
func (c *cursor) sights() (seen, settled sight) { return sight{c.seen, c.era}, sight{c.settled, c.era} }

// wrote tells the cursor that a transaction of the forwarder has ended.
// seen is the first result of sights, from before the transaction got its id.
func (c *cursor) wrote(seen sight) {
	if seen.era == c.era {
		c.settled = max(c.settled, seen.position)
	}
}

// advance moves the cursor after a sweep. at says what the sweep has
// read. settled must be the value of settled that sights returned when
// the sweep began.
func (c *cursor) advance(at Reach, settled sight) {
	if at.Ceiling < c.ceiling {
		// Transaction ids have gone back. So a replica that lagged behind has become the
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

// refillRead records the highest position that a refill has read. Otherwise the cursor
// could not pass the rows of excluded keys, because sweeps leave them out.
func (c *cursor) refillRead(position int64) { c.seen = max(c.seen, position) }

func (c *cursor) mark(position, ceiling int64) {
	if n := len(c.marks); position > c.low && n < maxMarks && (n == 0 || position > c.marks[n-1].position) {
		c.marks = append(c.marks, mark{position, ceiling})
	}
}

// rewind makes the next sweep read all rows above position. If a sweep is under way,
// its result does not move the cursor above position.
func (c *cursor) rewind(position int64) {
	c.era++
	c.low = min(c.low, position)
	c.seen = min(c.seen, position)
	c.settled = min(c.settled, position)
	for n := len(c.marks); n > 0 && c.marks[n-1].position > position; n-- {
		c.marks = c.marks[:n-1]
	}
}
