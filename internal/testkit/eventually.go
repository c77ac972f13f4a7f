package testkit

import (
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
