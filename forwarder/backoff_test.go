package forwarder

import (
	"math"
	"testing"
	"time"
)

// A back-off that means "never" is not one that is over.
func TestJitterOfTheLongest(t *testing.T) {
	for _, d := range []time.Duration{0, time.Second, math.MaxInt64 / 2, math.MaxInt64} {
		for range 100 {
			if got := jitter(d); got < d/4 {
				t.Fatalf("%v became %v", d, got)
			}
		}
	}
}
