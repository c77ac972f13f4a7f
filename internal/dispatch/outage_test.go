package dispatch

import (
	"errors"
	"reflect"
	"slices"
	"testing"
	"time"
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
		if len(publish) != 1 {
			t.Fatalf("len(publish) is %d, want 1: %+v", len(publish), publish)
		}
		s.Published(now, publish[0], Unavailable, errors.New("the broker is away"))
		c := s.Step(now)
		if len(c.Publish) != 0 {
			t.Fatalf("c.Publish is %+v, want none", c.Publish)
		}
		if len(c.Notices) != 1 {
			t.Fatalf("%d notices, want 1: %+v", len(c.Notices), c.Notices)
		}
		if c.Notices[0].Kind != WorkFailed {
			t.Fatalf("c.Notices[0].Kind is %d, want %d", c.Notices[0].Kind, WorkFailed)
		}

		now = now.Add(time.Minute)
		publish = s.Step(now).Publish
		if len(publish) != 1 {
			t.Fatalf("len(publish) is %d, want 1: %+v", len(publish), publish)
		}
		s.Published(now, publish[0], outcome, errors.New("an answer"))
		succeeded := func(n Notice) bool { return reflect.DeepEqual(n, Notice{Kind: WorkSucceeded, Work: Publishing}) }
		if notices := s.Step(now).Notices; !slices.ContainsFunc(notices, succeeded) {
			t.Fatalf("%v: notices are %+v, want one that publishing succeeded", outcome, notices)
		}
	}
}
