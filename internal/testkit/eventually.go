package testkit

import (
	"fmt"
	"os"
	"runtime"
	"testing"
	"time"
)

// The pause between two calls of the condition in Eventually is a twentieth of the time
// that the test has waited, within these limits. Without longer pauses, tests that wait
// for seconds would take processor time from the work that they wait for.
const (
	shortestPause = 5 * time.Millisecond
	longestPause  = 50 * time.Millisecond
)

// Eventually calls cond again and again until it returns true. If this does not happen
// within the given time, Eventually fails the test with an error that contains the
// description. On a busy machine the test gets more time, see [busyTimes].
func Eventually(t testing.TB, within time.Duration, description string, cond func() bool) {
	t.Helper()
	began := time.Now()
	for !cond() {
		waited := time.Since(began)
		if waited >= within && waited >= within*time.Duration(busyTimes()) {
			t.Fatalf("not within %v: %s", waited.Round(time.Second/10), description)
		}
		<-time.After(min(max(waited/20, shortestPause), longestPause))
	}
}

// Impatient is an environment variable. If it is set, tests do not get more time on a
// busy machine. The runner of the guards sets it: it expects a test to fail, and with
// more time the test may pass, because the library itself repairs some mistakes after a
// minute.
const Impatient = "ONCE_TEST_IMPATIENT"

// busyTimes returns the factor by which a test waits longer because the machine has
// other work. This is the load average of the last minute divided by the number of
// processors, at least 1 and at most 4. It is 1 if the load average is not known.
func busyTimes() int {
	if os.Getenv(Impatient) != "" {
		return 1
	}
	var load float64
	text, err := os.ReadFile("/proc/loadavg")
	if err == nil {
		_, err = fmt.Sscan(string(text), &load)
	}
	if err != nil {
		return 1
	}
	return max(1, min(4, int(load)/runtime.NumCPU()))
}

// Falls calls the function number again and again until it returns zero. It fails the
// test if the returned number does not decrease within the given time. Use it to wait
// for work whose total time depends on the machine.
func Falls(t testing.TB, within time.Duration, description string, number func() int) {
	t.Helper()
	for n := number(); n > 0; {
		before := n
		Eventually(t, within, fmt.Sprintf("fewer than %d: %s", before, description), func() bool { n = number(); return n < before })
	}
}
