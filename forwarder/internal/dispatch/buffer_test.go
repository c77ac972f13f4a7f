package dispatch

import (
	"reflect"
	"testing"
	"time"
)

// When the last message of a key is confirmed and all its rows were read, the key uses
// no more memory and requests no refill.
func TestAKeyQueueEndsWithItsLastMessage(t *testing.T) {
	b := newBuffer(64)
	b.add(&Message{Position: 1, Key: "key"}, false)
	b.add(&Message{Position: 2, Key: "key"}, false)
	q := b.queues["key"]
	for range 2 {
		if !reflect.DeepEqual(b.queues["key"], q) {
			t.Fatalf(`b.queues["key"] is %+v, want %+v`, b.queues["key"], q)
		}
		m := q.head
		b.advance(q)
		b.forget(m)
		if len(b.refills) != 0 {
			t.Fatalf("b.refills are %+v, want none", b.refills)
		}
	}
	if len(b.queues) != 0 {
		t.Fatalf("b.queues are %+v, want none", b.queues)
	}
	if len(b.messages) != 0 {
		t.Fatalf("b.messages are %+v, want none", b.messages)
	}
}

// Messages of lost slots are not published, whether a sweep or a lookahead has found them.
func TestMessagesOfLostSlotsAreNotReady(t *testing.T) {
	t.Parallel()
	b := newBuffer(64)
	for position := range int64(4) {
		b.add(&Message{Position: position, Topic: "t", Slot: position % 2, ahead: position > 1}, false)
	}
	b.loseSlots(map[int64]bool{1: true})
	for _, want := range []int64{0, 2} {
		if m := b.take(func(string) bool { return true }); m == nil || m.Position != want {
			t.Errorf("took %+v, want %d", m, want)
		}
	}
	if b.ready.count != 0 || b.ahead.ready.count != 0 || len(b.messages) != 2 || b.ahead.messages != 1 || b.orphans != 0 {
		t.Errorf("%d and %d are ready, %d are in memory, %d are orphans", b.ready.count, b.ahead.ready.count, len(b.messages), b.orphans)
	}
}

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
	c.at(t, 0)
	c.reads(snapshot(0, 100, 108))
	c.reads(snapshot(0, 105, 108)) // 105 is open, and may have taken one of these positions, too
	c.at(t, 0)
	c.reads(snapshot(0, 108, 110))
	c.at(t, 6)
}

// A sweep reads the transaction ids first, and then the rows. A transaction that begins
// in between may take a position below a position that the sweep returns. Its id is not
// below the sweep's ceiling, so the cursor must wait for it.
func TestCursorWaitsForAWriterThatBeganDuringARead(t *testing.T) {
	var c cursor
	c.reads(snapshot(6, 107, 107)) // no open transaction is known
	c.reads(snapshot(0, 107, 108)) // transaction 107 had begun during the first sweep
	c.at(t, 0)
	c.reads(snapshot(0, 108, 108))
	c.at(t, 6)
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
	c.at(t, 0)
	read(snapshot(0, 110, 110))
	c.at(t, 6)
}

// The cursor passes the positions that a refill has read, although sweeps leave out the
// keys of refills.
func TestCursorPassesWhatARefillHasRead(t *testing.T) {
	var c cursor
	c.reads(snapshot(6, 10, 10))
	c.refillRead(90)
	c.reads(snapshot(0, 10, 10), snapshot(0, 12, 12))
	c.at(t, 90)
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
	c.at(t, 0)
}

func TestCursorDoesNotPassWhatAShortReadLeft(t *testing.T) {
	var c cursor
	c.reads(snapshot(100, 10, 10))
	c.reads(Reach{Highest: 50, Covered: 50, Horizon: 10, Ceiling: 10}) // more rows were committed late than a sweep returns
	c.at(t, 50)
	c.reads(snapshot(70, 10, 10))
	c.at(t, 100)
}

func TestCursorBoundsItsMarks(t *testing.T) {
	var c cursor
	for i := range int64(1000) {
		c.reads(snapshot(i+1, 10, 20+i))
	}
	c.at(t, 0)
	if len(c.marks) != maxMarks {
		t.Fatalf("%d marks, want %d: %+v", len(c.marks), maxMarks, c.marks)
	}
	c.reads(snapshot(0, 2000, 2000))
	c.reads(snapshot(0, 2000, 2000))
	c.at(t, 1000)
}

func TestCursorRewinds(t *testing.T) {
	var c cursor
	c.reads(snapshot(9, 10, 10))
	c.reads(snapshot(0, 10, 10))
	c.at(t, 9)
	c.rewind(20)
	c.at(t, 9)
	c.rewind(4)
	c.at(t, 4)
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
	c.at(t, 4)
	c.reads(snapshot(9, 20, 20))
	c.at(t, 12)
}

func TestCursorStartsAgainWhenTransactionIDsGoBack(t *testing.T) {
	var c cursor
	c.reads(snapshot(9, 10, 10))
	c.reads(snapshot(0, 10, 10))
	c.reads(snapshot(3, 5, 5)) // another server, which lagged behind, has taken over
	c.at(t, 0)
}

// A settlement is a transaction of the forwarder. When it has ended, reads begin above
// the positions that were read before the settlement. Without outcomes there is no
// settlement.
func TestReadsBeginAboveWhatWasReadBeforeASettlement(t *testing.T) {
	for _, wrote := range []bool{true, false} {
		s := New(Config{
			BatchSize: 10, Window: 2, BufferBytes: 1 << 20, PollMin: time.Second, PollMax: time.Second,
			StallTimeout: time.Hour, CloseTimeout: time.Second, RescanEvery: time.Hour,
			Policy: policyOf, Pause: func(int) time.Duration { return time.Second },
			Jitter: func(d time.Duration) time.Duration { return d },
		})
		s.SetSlots([]int64{0})
		now := time.Now()
		s.RowsRead(now, s.Step(now).Read, []*Message{{Position: 1, ID: "a", Topic: "t"}}, snapshot(1, 107, 107))
		given := s.Step(now)
		if len(given.Publish) != 1 || given.Settle != nil {
			t.Fatalf("%d messages, settlement %v", len(given.Publish), given.Settle)
		}
		s.Published(now, given.Publish[0], Confirmed, nil)
		var settlement *Settlement
		for range 100 {
			if now = now.Add(time.Millisecond); settlement == nil {
				settlement = s.Step(now).Settle
			}
		}
		if settlement == nil {
			t.Fatal("the confirm is not recorded")
		}
		s.Settled(now, settlement, Settled{Confirmed: true, Wrote: wrote})
		from := int64(0)
		for range 3 {
			now = now.Add(time.Second)
			c := s.Step(now)
			if c.Settle != nil || c.Read == nil {
				t.Fatalf("read %v, settlement %v", c.Read, c.Settle)
			}
			from = c.Read.From
			s.RowsRead(now, c.Read, nil, snapshot(0, 110, 110))
		}
		if wrote != (from == 1) {
			t.Errorf("wrote is %t, and the last read began above position %d", wrote, from)
		}
	}
}

func (c *cursor) at(t *testing.T, want int64) {
	t.Helper()
	if c.low != want {
		t.Fatalf("the cursor is at %d, want %d", c.low, want)
	}
}
