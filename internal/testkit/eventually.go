package testkit

import (
	"fmt"
	"os"
	"runtime"
	"testing"
	"time"
)

// The pause between two calls of the condition in Eventually is a twentieth of the time
// that was waited, within these limits. Without a pause, tests that wait for seconds would
// take the processor from the work that they wait for.
const (
	shortestPause = 5 * time.Millisecond
	longestPause  = 50 * time.Millisecond
)

// Eventually calls cond again and again until it returns true. If this does not happen
// within the given time, it fails the test, with an error that contains what. On a busy
// machine the test gets more time, see [busyTimes].
func Eventually(t testing.TB, within time.Duration, what string, cond func() bool) {
	t.Helper()
	began := time.Now()
	for !cond() {
		waited := time.Since(began)
		if waited >= within && waited >= within*time.Duration(busyTimes()) {
			t.Fatalf("not within %v: %s", waited.Round(time.Second/10), what)
		}
		<-time.After(min(max(waited/20, shortestPause), longestPause))
	}
}

// Impatient is an environment variable. If it is set, tests get no more time on a busy
// machine. The guards set it: they expect that a test fails, and with more time it may
// pass, because the library repairs some mistakes by itself after a minute.
const Impatient = "ONCE_TEST_IMPATIENT"

// busyTimes returns how many times as long a test has to wait because the machine has
// other work: the processes that want to run, or wait for the disk, for each processor,
// in the last minute. It is at least 1 and at most 4. If the system does not tell it,
// it is 1.
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

// Falls calls number again and again until it returns zero. It fails the test if the
// number has not decreased for the given time. Use it to wait for work whose total time
// depends on the machine.
func Falls(t testing.TB, within time.Duration, what string, number func() int) {
	t.Helper()
	for n := number(); n > 0; {
		before := n
		Eventually(t, within, fmt.Sprintf("fewer than %d: %s", before, what), func() bool { n = number(); return n < before })
	}
}
