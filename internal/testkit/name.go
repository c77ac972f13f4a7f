package testkit

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
)

var (
	processStart = time.Now()
	nameCount    atomic.Int64
)

// uniqueName returns a name that no other test, process or machine uses. The name
// contains the time when this process started, and stale reads it.
func uniqueName(prefix, separator string) string {
	return strings.Join([]string{
		prefix,
		strconv.FormatInt(processStart.Unix(), 10),
		fmt.Sprintf("%x", processStart.Nanosecond()),
		strconv.Itoa(os.Getpid()),
		strconv.FormatInt(nameCount.Add(1), 10),
	}, separator)
}

// stale reports whether a name was returned by uniqueName more than two hours ago, with
// the same prefix and separator. Its process must have ended without cleaning up.
func stale(name, prefix, separator string) bool {
	rest, ours := strings.CutPrefix(name, prefix+separator)
	started, _, _ := strings.Cut(rest, separator)
	seconds, err := strconv.ParseInt(started, 10, 64)
	return ours && err == nil && time.Since(time.Unix(seconds, 0)) > 2*time.Hour
}
