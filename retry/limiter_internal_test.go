package retry

import (
	"testing"
	"time"

	"github.com/watermill-once/once/internal/parkedrows"
)

// Starts are used in turn, each not before its time. Those that nobody has used in time are dropped,
// because others could have used them, and fewer are taken next.
func TestStartsAreUsedInTimeOrDropped(t *testing.T) {
	now := time.Now()
	const period = 20 * time.Millisecond
	s := starts{most: 10}
	if n := s.next(); n != 1 {
		t.Errorf("first %d starts are taken, want 1", n)
	}
	s.add(parkedrows.Starts{Next: now, Period: period, N: 8, Late: 30 * time.Millisecond})
	for i := range 2 {
		if at, ok := s.take(now); !ok || !at.Equal(now.Add(time.Duration(i)*period)) {
			t.Errorf("start %d is at %v, %v", i, at.Sub(now), ok)
		}
	}
	if n := s.next(); n != 10 {
		t.Errorf("%d starts are taken after 8, want 10", n)
	}
	// Starts at 40, 60, 80, 100, 120 and 140 ms are left. At 131 ms, those before 101 ms are too late.
	at, ok := s.take(now.Add(131 * time.Millisecond))
	if want := now.Add(120 * time.Millisecond); !ok || !at.Equal(want) {
		t.Errorf("the next start is at %v, %v, want %v", at.Sub(now), ok, want.Sub(now))
	}
	if n := s.left(now.Add(131 * time.Millisecond)); n != 1 {
		t.Errorf("%d starts are left, want 1", n)
	}
	if n := s.next(); n != 4 {
		t.Errorf("%d starts are taken after 4 of 8 passed unused, want 4", n)
	}
	if _, ok := s.take(now.Add(time.Second)); ok {
		t.Error("a start was used a second late")
	}
	s.add(parkedrows.Starts{Next: now, Period: period, N: 1})
	if n := s.next(); n != 2 {
		t.Errorf("%d starts are taken after 1, want 2", n)
	}
}
