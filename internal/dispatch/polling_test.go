package dispatch

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// While nothing arrives, the pauses between reads grow. A hint makes them short again,
// also if the read after it finds nothing: the transaction may not be visible yet.
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
		require.NotNil(t, read)
		s.RowsRead(now, read, nil, Reach{Covered: Everything})
	}
	pause := func() time.Duration {
		t.Helper()
		c := s.Step(now)
		require.Nil(t, c.Read)
		return c.WakeAt.Sub(now)
	}
	rows := []*Message{{Position: 1, ID: "a", Topic: "t"}}
	s.RowsRead(now, s.Step(now).Read, rows, Reach{Highest: 1, Covered: Everything})
	require.Equal(t, time.Second, pause(), "something was found")

	for _, want := range []time.Duration{10 * time.Second, time.Minute} {
		now = now.Add(4 * want)
		sweep()
		require.GreaterOrEqual(t, pause(), want)
	}
	require.Equal(t, time.Minute, pause())

	s.Hint(now)
	now = now.Add(time.Second)
	sweep()
	require.Equal(t, time.Second, pause(), "after the hint")
}
