package dispatch

import (
	"testing"
	"time"
)

// While nothing arrives, the pauses between reads grow. A hint makes the pauses short
// again, even if the next read finds nothing, because the transaction may not be
// visible yet.
func TestPausesBetweenReadsGrowUntilAHint(t *testing.T) {
	s := New(Config{
		BatchSize: 10, Window: 2, BufferBytes: 1 << 20, PollMin: time.Second, PollMax: time.Minute,
		StallTimeout: time.Hour, CloseTimeout: time.Second, RescanEvery: 24 * time.Hour,
		Policy: policyOf, Pause: func(int) time.Duration { return time.Second },
		Jitter: func(d time.Duration) time.Duration { return d },
	})
	s.SetSlots([]int64{0})
	now := time.Now()
	sweep := func() {
		t.Helper()
		read := s.Step(now).Read
		if read == nil {
			t.Fatal("nothing is read")
		}
		s.RowsRead(now, read, nil, Reach{Covered: Everything})
	}
	pause := func() time.Duration {
		t.Helper()
		c := s.Step(now)
		if c.Read != nil {
			t.Fatal("it reads")
		}
		return c.WakeAt.Sub(now)
	}
	rows := []*Message{{Position: 1, ID: "a", Topic: "t"}}
	s.RowsRead(now, s.Step(now).Read, rows, Reach{Highest: 1, Covered: Everything})
	if got := pause(); got != time.Second {
		t.Errorf("after a row was found, the pause is %v", got)
	}

	for _, want := range []time.Duration{10 * time.Second, time.Minute} {
		now = now.Add(4 * want)
		sweep()
		if got := pause(); got < want || got > time.Minute {
			t.Errorf("%v after the last row, the pause is %v", 4*want, got)
		}
	}

	s.Hint(now)
	now = now.Add(time.Second)
	sweep()
	if got := pause(); got != time.Second {
		t.Errorf("after the hint, the pause is %v", got)
	}
}
