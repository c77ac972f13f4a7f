package forwarder

import (
	"math"
	"testing"
	"time"
)

// The jitter of the longest possible pause must not overflow: the pause would become
// negative and end immediately.
func TestJitterOfTheLongest(t *testing.T) {
	for _, d := range []time.Duration{0, time.Second, math.MaxInt64 / 2, math.MaxInt64} {
		for range 100 {
			if got := jitter(d); got < d/4 {
				t.Fatalf("%v became %v", d, got)
			}
		}
	}
}
