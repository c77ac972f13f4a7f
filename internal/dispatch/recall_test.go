package dispatch

import (
	"errors"
	"testing"
	"time"
)

// After Recall, messages that were not given to the publisher yet return to the
// Scheduler. Nothing else is sent until all of them have returned. Then sending continues
// with these messages.
func TestRecalledMessagesAreSentAgain(t *testing.T) {
	s := New(Config{
		BatchSize: 10, Window: 2, BufferBytes: 1 << 20, PollMin: time.Second, PollMax: time.Second,
		StallTimeout: time.Hour, CloseTimeout: time.Second, RescanEvery: time.Hour,
		Policy: policyOf, Pause: func(int) time.Duration { return time.Second },
		Jitter: func(d time.Duration) time.Duration { return d },
	})
	s.SetSlots([]int64{0})
	now := time.Now()
	rows := []*Message{{Position: 1, ID: "a", Topic: "t"}, {Position: 2, ID: "b", Topic: "t"}, {Position: 3, ID: "c", Topic: "t"}}
	s.RowsRead(now, s.Step(now).Read, rows, Reach{Highest: 3, Covered: Everything})
	given := append([]Publish(nil), s.Step(now).Publish...)
	if len(given) != 2 {
		t.Fatalf("len(given) is %d, want 2: %+v", len(given), given)
	}
	if !s.Sending() {
		t.Fatal("s.Sending returned false")
	}
	s.Recall()
	if s.Sending() {
		t.Fatal("s.Sending returned true")
	}
	s.Published(now, given[0], NotSent, nil)
	if got := s.Step(now).Publish; len(got) != 0 {
		t.Fatalf("s.Step(now).Publish is %+v, want none: the second has not come back", got)
	}
	if s.Sending() {
		t.Fatal("s.Sending returned true")
	}
	s.Published(now, given[1], NotSent, errors.New("recalled"))
	again := s.Step(now).Publish
	if len(again) != 2 {
		t.Fatalf("len(again) is %d, want 2: %+v", len(again), again)
	}
	if !s.Sending() {
		t.Fatal("s.Sending returned false")
	}
}
