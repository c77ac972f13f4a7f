package dispatch

import (
	"testing"
)

// snapshot returns the Reach of a sweep that reached the end of the outbox.
func snapshot(highest, horizon, ceiling int64) Reach {
	return Reach{Highest: highest, Covered: Everything, Horizon: horizon, Ceiling: ceiling}
}

// reads simulates sweeps. After each sweep, a transaction of the forwarder begins and
// ends.
func (c *cursor) reads(r ...Reach) {
	for _, r := range r {
		_, settled := c.sights()
		c.advance(r, settled)
		seen, _ := c.sights()
		c.wrote(seen)
	}
}

func TestCursorPassesWhenAllWritersHaveEnded(t *testing.T) {
	var c cursor
	c.reads(snapshot(6, 100, 107)) // 100 is open, and may have taken a position from 1 to 5
	if c.low != 0 {
		t.Fatalf("c.low is %d, want 0", c.low)
	}
	c.reads(snapshot(0, 100, 108))
	c.reads(snapshot(0, 105, 108)) // 105 is open, and may have taken one of these positions, too
	if c.low != 0 {
		t.Fatalf("c.low is %d, want 0", c.low)
	}
	c.reads(snapshot(0, 108, 110))
	if c.low != 6 {
		t.Fatalf("c.low is %d, want 6", c.low)
	}
}

// A sweep reads the transaction ids first, and then the rows. A transaction that begins
// in between may take a position below a position that the sweep returns. Its id is not
// below the sweep's ceiling, so the cursor must wait for it.
func TestCursorWaitsForAWriterThatBeganDuringARead(t *testing.T) {
	var c cursor
	c.reads(snapshot(6, 107, 107)) // no open transaction is known
	c.reads(snapshot(0, 107, 108)) // transaction 107 had begun during the first sweep
	if c.low != 0 {
		t.Fatalf("c.low is %d, want 0", c.low)
	}
	c.reads(snapshot(0, 108, 108))
	if c.low != 6 {
		t.Fatalf("c.low is %d, want 6", c.low)
	}
}

// The ceiling counts only transactions that have ended. While transaction 107 ended,
// transaction 108 may have begun and taken a lower position. The cursor must not pass
// the position before a transaction of the forwarder with a higher id has ended.
func TestCursorWaitsForATransactionOfOurOwn(t *testing.T) {
	var c cursor
	read := func(r Reach) {
		_, settled := c.sights()
		c.advance(r, settled)
	}
	for range 3 {
		read(snapshot(6, 108, 108))
	}
	early, _ := c.sights()
	read(snapshot(7, 108, 108))
	c.wrote(early) // this transaction has the id 109, and began after 6 was read
	read(snapshot(0, 108, 110))
	if c.low != 0 {
		t.Fatalf("c.low is %d, want 0", c.low)
	}
	read(snapshot(0, 110, 110))
	if c.low != 6 {
		t.Fatalf("c.low is %d, want 6", c.low)
	}
}

// The cursor passes the positions that a refill has read, although sweeps leave out the
// keys of refills.
func TestCursorPassesWhatARefillHasRead(t *testing.T) {
	var c cursor
	c.reads(snapshot(6, 10, 10))
	c.refillRead(90)
	c.reads(snapshot(0, 10, 10), snapshot(0, 12, 12))
	if c.low != 90 {
		t.Fatalf("c.low is %d, want 90", c.low)
	}
}

func TestCursorForgetsWhatWasSeenBeforeARewind(t *testing.T) {
	var c cursor
	c.advance(snapshot(9, 10, 10), sight{})
	before, _ := c.sights()
	c.rewind(4)
	c.wrote(before)
	_, settled := c.sights()
	if settled.position != 0 {
		t.Fatalf("settled.position is %d, want 0", settled.position)
	}

	c.reads(snapshot(9, 10, 10))
	_, settled = c.sights()
	c.rewind(4)
	c.advance(snapshot(9, 10, 10), settled) // this sweep began before the rewind
	if c.low != 0 {
		t.Fatalf("c.low is %d, want 0", c.low)
	}
}

func TestCursorDoesNotPassWhatAShortReadLeft(t *testing.T) {
	var c cursor
	c.reads(snapshot(100, 10, 10))
	c.reads(Reach{Highest: 50, Covered: 50, Horizon: 10, Ceiling: 10}) // more rows were committed late than a sweep returns
	if c.low != 50 {
		t.Fatalf("c.low is %d, want 50", c.low)
	}
	c.reads(snapshot(70, 10, 10))
	if c.low != 100 {
		t.Fatalf("c.low is %d, want 100", c.low)
	}
}

func TestCursorBoundsItsMarks(t *testing.T) {
	var c cursor
	for i := range int64(1000) {
		c.reads(snapshot(i+1, 10, 20+i))
	}
	if c.low != 0 {
		t.Fatalf("c.low is %d, want 0", c.low)
	}
	if len(c.marks) != maxMarks {
		t.Fatalf("%d marks, want %d: %+v", len(c.marks), maxMarks, c.marks)
	}
	c.reads(snapshot(0, 2000, 2000))
	c.reads(snapshot(0, 2000, 2000))
	if c.low != 1000 {
		t.Fatalf("c.low is %d, want 1000", c.low)
	}
}

func TestCursorRewinds(t *testing.T) {
	var c cursor
	c.reads(snapshot(9, 10, 10))
	c.reads(snapshot(0, 10, 10))
	if c.low != 9 {
		t.Fatalf("c.low is %d, want 9", c.low)
	}
	c.rewind(20)
	if c.low != 9 {
		t.Fatalf("c.low is %d, want 9", c.low)
	}
	c.rewind(4)
	if c.low != 4 {
		t.Fatalf("c.low is %d, want 4", c.low)
	}
	c.reads(snapshot(0, 10, 10))
	if c.low != 4 {
		t.Fatalf("c.low is %d, want 4: nothing above has been seen since", c.low)
	}
}

func TestCursorPassesNothingAboveARewindByAReadUnderWay(t *testing.T) {
	var c cursor
	c.reads(snapshot(9, 10, 10))
	c.reads(snapshot(9, 9, 11)) // a transaction is open, so a mark is set but not passed
	c.rewind(4)
	c.reads(snapshot(12, 20, 20)) // this sweep began before the rewind
	if c.low != 4 {
		t.Fatalf("c.low is %d, want 4", c.low)
	}
	c.reads(snapshot(9, 20, 20))
	if c.low != 12 {
		t.Fatalf("c.low is %d, want 12", c.low)
	}
}

func TestCursorStartsAgainWhenTransactionIDsGoBack(t *testing.T) {
	var c cursor
	c.reads(snapshot(9, 10, 10))
	c.reads(snapshot(0, 10, 10))
	c.reads(snapshot(3, 5, 5)) // another server, which lagged behind, has taken over
	if c.low != 0 {
		t.Fatalf("c.low is %d, want 0", c.low)
	}
}
