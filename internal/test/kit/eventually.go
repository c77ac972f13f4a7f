package kit

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
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

// Waits checks that call waits until the deadline of its context, and that its error
// then contains text. On a busy machine the deadline can pass before call begins to
// wait. Therefore Waits calls it again with twice as much time, until the error contains
// text or a call had more than a minute.
func Waits(t testing.TB, text string, call func(ctx context.Context) error) {
	t.Helper()
	for timeout := 300 * time.Millisecond; ; timeout *= 2 {
		ctx, cancel := context.WithTimeout(t.Context(), timeout)
		err := call(ctx)
		cancel()
		switch {
		case err == nil:
			t.Fatalf("no error, want one with %q", text)
		case strings.Contains(err.Error(), text) && errors.Is(err, context.DeadlineExceeded):
			return
		case timeout > time.Minute:
			t.Fatalf("got %v, want an error with %q and the deadline", err, text)
		}
	}
}

// Goroutines returns the number of goroutines whose stack trace contains all parts.
// Examples of parts are ".waitHandled(", or "(*Forwarder).Close(" and "[chan receive".
// Use it to wait until the code under test has reached a step, if nothing else shows
// this.
func Goroutines(parts ...string) (n int) {
	buffer := make([]byte, 1<<20)
	for {
		size := runtime.Stack(buffer, true)
		if size < len(buffer) {
			buffer = buffer[:size]
			break
		}
		buffer = make([]byte, 2*len(buffer))
	}
	for stack := range strings.SplitSeq(string(buffer), "\n\n") {
		if !slices.ContainsFunc(parts, func(part string) bool { return !strings.Contains(stack, part) }) {
			n++
		}
	}
	return n
}

// WithinADay waits until midnight UTC if midnight is less than two minutes away. Call
// it in a test that must not see a change of the date.
func WithinADay(t testing.TB) {
	t.Helper()
	tomorrow := time.Now().UTC().Truncate(24 * time.Hour).Add(24 * time.Hour)
	if left := time.Until(tomorrow); left < 2*time.Minute {
		t.Logf("waiting %v for midnight", left)
		<-time.After(left)
	}
}

var (
	processStart = time.Now()
	nameCount    atomic.Int64
)

// uniqueName returns a name that no other test, process or machine uses. The name
// contains the time when this process started. The function stale reads this time.
func uniqueName(prefix, separator string) string {
	return strings.Join([]string{
		prefix,
		strconv.FormatInt(processStart.Unix(), 10),
		fmt.Sprintf("%x", processStart.Nanosecond()),
		strconv.Itoa(os.Getpid()),
		strconv.FormatInt(nameCount.Add(1), 10),
	}, separator)
}

// stale reports whether a process that started more than two hours ago got this name
// from uniqueName, with the same prefix and separator. That process must have ended
// without cleaning up.
func stale(name, prefix, separator string) bool {
	rest, ours := strings.CutPrefix(name, prefix+separator)
	started, _, _ := strings.Cut(rest, separator)
	seconds, err := strconv.ParseInt(started, 10, 64)
	return ours && err == nil && time.Since(time.Unix(seconds, 0)) > 2*time.Hour
}

// PagesRead returns how many pages PostgreSQL has read for a query. plan
// is the output of EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON).
func PagesRead(t testing.TB, plan []byte) int {
	t.Helper()
	var explained []struct {
		Plan struct {
			Hit  int `json:"Shared Hit Blocks"`
			Read int `json:"Shared Read Blocks"`
		} `json:"Plan"`
	}
	if err := json.Unmarshal(plan, &explained); err != nil {
		t.Fatal(err)
	}
	return explained[0].Plan.Hit + explained[0].Plan.Read
}

// RowsRead returns how many rows of a table, and entries of its indexes, have been read
// so far. The database must be PostgreSQL. The pool db must have only one connection,
// because RowsRead makes only the statistics of its own connection visible.
func RowsRead(t testing.TB, db Database, table string) (n int) {
	t.Helper()
	if _, err := db.ExecContext(t.Context(), `SELECT pg_stat_force_next_flush()`); err != nil {
		t.Fatal(err)
	}
	err := db.QueryRowContext(t.Context(), `SELECT (SELECT seq_tup_read FROM pg_stat_user_tables WHERE relname = $1)
		+ (SELECT SUM(idx_tup_read) FROM pg_stat_user_indexes WHERE relname = $1)`, table).Scan(&n)
	if err != nil {
		t.Fatal(err)
	}
	return n
}
