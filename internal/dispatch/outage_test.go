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

// The pause after a failure grows with the number of failures. Step is called when it
// ends.
func TestPauseAfterAFailureEndsWithAStep(t *testing.T) {
	t.Parallel()
	s := fixed()
	var o outage
	for failures := range 3 {
		s.fails(&o, Reading, errFailed, start)
		end := start.Add(time.Duration(failures+1) * time.Second)
		s.wakeAt = start.Add(time.Hour)
		if !s.pausing(&o, end.Add(-1)) || !s.wakeAt.Equal(end) {
			t.Errorf("after %d failures it wakes up after %v, want %v", failures+1, s.wakeAt.Sub(start), end.Sub(start))
		}
		s.wakeAt = start.Add(time.Hour)
		if s.pausing(&o, end) || !s.wakeAt.Equal(start.Add(time.Hour)) {
			t.Errorf("after %d failures the pause does not end", failures+1)
		}
	}
	if !s.worked(&o, Reading) || s.worked(&o, Reading) || o != (outage{}) || len(s.notices) != 4 {
		t.Errorf("got %+v and the notices %+v, want one success after three failures", o, s.notices)
	}
}
