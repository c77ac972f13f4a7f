package dispatch

import (
	"testing"
	"time"
)

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
