package rabbit

import (
	"testing"
	"time"
)

func TestPauseDoublesFromTheLowerToTheUpperBound(t *testing.T) {
	const low, high = 100 * time.Millisecond, time.Second
	for failed, longest := range []time.Duration{0, low, 2 * low, 4 * low, 8 * low, high, high} {
		for range 100 {
			if got := pauseAfter(failed, low, high); got < longest/2 || got > longest {
				t.Fatalf("the pause after %d failures is %v, want %v to %v", failed, got, longest/2, longest)
			}
		}
	}
	if got := pauseAfter(1<<30, low, high); got < high/2 || got > high {
		t.Errorf("the pause after 1<<30 failures is %v, want %v to %v", got, high/2, high)
	}
}
