//go:build failpoints

package failpoint

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
)

// armed is the point at which this process dies, after the remaining hits in left.
var armed, left = parse(os.Getenv(Variable))

func parse(value string) (name string, left *atomic.Int64) {
	left = new(atomic.Int64)
	left.Store(1)
	name, count, counted := strings.Cut(value, ":")
	if counted {
		n, err := strconv.ParseInt(count, 10, 64)
		if err != nil || n < 1 {
			panic(fmt.Sprintf("%s is %q: the part after the colon must be a number from 1", Variable, value))
		}
		left.Store(n)
	}
	if name != "" && !slices.Contains(Points, name) {
		panic(fmt.Sprintf("%s is %q: no such point", Variable, value))
	}
	return name, left
}

var freezes = os.Getenv(Freezes) != ""

// Hit kills the process at the armed point, without deferred functions. With the variable Freezes
// it stops the process instead, and returns when it is continued.
func Hit(name string) {
	if name != armed || left.Add(-1) != 0 {
		return
	}
	fmt.Fprintln(os.Stderr, Reached+name)
	self, err := os.FindProcess(os.Getpid())
	if err == nil && freezes {
		_ = self.Signal(syscall.SIGSTOP)
		return
	}
	if err == nil {
		_ = self.Kill()
	}
	select {}
}
