package testkit

import (
	"fmt"
	"testing"
	"time"
)

// Eventually polls cond until it is true. If cond does not become true in time, it fails
// the test with the text in what.
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
			if cond() { // on a slow machine the last poll may be long ago
				return
			}
			t.Fatalf("not within %v: %s", within, what)
		}
	}
}

// Falls polls number until it is zero. It fails the test if number has not become smaller
// for the time within. Use it for much work, whose time depends on the machine.
func Falls(t testing.TB, within time.Duration, what string, number func() int) {
	t.Helper()
	for n := number(); n > 0; {
		before := n
		Eventually(t, within, fmt.Sprintf("fewer than %d: %s", before, what), func() bool { n = number(); return n < before })
	}
}
