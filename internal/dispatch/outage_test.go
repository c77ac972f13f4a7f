package dispatch

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Every answer of the broker, and not only a confirm, ends an outage.
func TestEachAnswerEndsAnOutage(t *testing.T) {
	same := func(d time.Duration) time.Duration { return d }
	for _, outcome := range []Outcome{Confirmed, Refused, Unacceptable} {
		s := New(Config{
			BatchSize: 10, Window: 10, BufferBytes: 1 << 20, PollMin: time.Second, PollMax: time.Second,
			StallTimeout: time.Hour, CloseTimeout: time.Second, RescanEvery: time.Hour,
			Policy: policyOf, Pause: func(int) time.Duration { return time.Second }, Jitter: same,
		})
		s.SetSlots([]int64{0})
		now := time.Now()
		s.RowsRead(now, s.Step(now).Read, []*Message{{Position: 1, ID: "m", Topic: "t"}}, Reach{Highest: 1, Covered: Everything})
		publish := s.Step(now).Publish
		require.Len(t, publish, 1)
		s.Published(now, publish[0], Unavailable, errors.New("the broker is away"))
		c := s.Step(now)
		require.Empty(t, c.Publish)
		require.Len(t, c.Notices, 1)
		require.Equal(t, WorkFailed, c.Notices[0].Kind)

		now = now.Add(time.Minute)
		publish = s.Step(now).Publish
		require.Len(t, publish, 1)
		s.Published(now, publish[0], outcome, errors.New("an answer"))
		require.Contains(t, s.Step(now).Notices, Notice{Kind: WorkSucceeded, Work: Publishing}, outcome)
	}
}
