package forwarder

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// snapshot is a read that returned everything.
func snapshot(highest, horizon, ceiling int64) reached {
	return reached{highest: highest, covered: everything, horizon: horizon, ceiling: ceiling}
}

func TestCursorPassesWhenAllWritersHaveEnded(t *testing.T) {
	var c cursor
	c.advance(snapshot(6, 100, 107)) // 100 is open: it may have taken 1 to 5
	require.EqualValues(t, 0, c.low)
	c.advance(snapshot(0, 100, 108))
	c.advance(snapshot(0, 105, 108)) // 105 is open: it may have taken one too
	require.EqualValues(t, 0, c.low)
	c.advance(snapshot(0, 108, 110))
	require.EqualValues(t, 6, c.low)
}

// A writer may have its position and not yet a transaction id when the first
// read sees a higher one: then its id is at least that read's ceiling.
func TestCursorWaitsForAWriterWithoutAnID(t *testing.T) {
	var c cursor
	c.advance(snapshot(6, 107, 107)) // nobody is known to write
	c.advance(snapshot(0, 107, 108)) // but 107 was about to
	require.EqualValues(t, 0, c.low)
	c.advance(snapshot(0, 108, 108))
	require.EqualValues(t, 6, c.low)
}

func TestCursorDoesNotPassWhatAShortReadLeft(t *testing.T) {
	var c cursor
	c.advance(snapshot(100, 10, 10))
	c.advance(reached{highest: 50, covered: 50, horizon: 10, ceiling: 10}) // late ones, and more of them
	require.EqualValues(t, 50, c.low)
	c.advance(snapshot(70, 10, 10))
	require.EqualValues(t, 100, c.low)
}

func TestCursorBoundsItsMarks(t *testing.T) {
	var c cursor
	for i := range int64(1000) {
		c.advance(snapshot(i+1, 10, 20+i))
	}
	require.EqualValues(t, 0, c.low)
	require.Len(t, c.marks, enoughMarks)
	c.advance(snapshot(0, 2000, 2000))
	c.advance(snapshot(0, 2000, 2000))
	require.EqualValues(t, 1000, c.low)
}

func TestCursorRewinds(t *testing.T) {
	var c cursor
	c.advance(snapshot(9, 10, 10))
	c.advance(snapshot(0, 10, 10))
	require.EqualValues(t, 9, c.low)
	c.rewind(20)
	require.EqualValues(t, 9, c.low)
	c.rewind(4)
	require.EqualValues(t, 4, c.low)
	c.advance(snapshot(0, 10, 10))
	require.EqualValues(t, 4, c.low, "nothing above has been seen since")
}

func TestCursorPassesNothingAboveARewindByAReadUnderWay(t *testing.T) {
	var c cursor
	c.advance(snapshot(9, 10, 10))
	c.advance(snapshot(9, 9, 11)) // one is open: a mark is set and not passed
	c.rewind(4)
	c.advance(snapshot(12, 20, 20)) // began before
	require.EqualValues(t, 4, c.low)
	c.advance(snapshot(9, 20, 20))
	require.EqualValues(t, 12, c.low)
}

func TestCursorStartsAgainWhenTransactionIDsGoBack(t *testing.T) {
	var c cursor
	c.advance(snapshot(9, 10, 10))
	c.advance(snapshot(0, 10, 10))
	c.advance(snapshot(3, 5, 5)) // another server, which lagged behind
	require.EqualValues(t, 0, c.low)
}
