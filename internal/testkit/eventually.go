package testkit

import (
	"fmt"
	"testing"
	"time"
)

// Eventually polls cond until it is true, and fails the test with what was
// waited for when it is not true in time.
func Eventually(t testing.TB, within time.Duration, what string, cond func() bool) {
	t.Helper()
	deadline := time.NewTimer(within)
	defer deadline.Stop()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !cond() {
		select {
		case <-tick.C:
		case <-deadline.C:
			if cond() { // it may have had no chance for long
				return
			}
			t.Fatalf("not within %v: %s", within, what)
		}
	}
}

// Falls polls number until it is zero, for as long as it gets smaller: it fails
// the test when that has not happened in time. It is for much work, of which
// nobody knows how long it takes the machine.
func Falls(t testing.TB, within time.Duration, what string, number func() int) {
	t.Helper()
	for n := number(); n > 0; {
		before := n
		Eventually(t, within, fmt.Sprintf("fewer than %d: %s", before, what), func() bool { n = number(); return n < before })
	}
}
