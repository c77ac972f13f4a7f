package testkit

import (
	"runtime"
	"slices"
	"strings"
)

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
