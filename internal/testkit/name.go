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
