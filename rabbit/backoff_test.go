package rabbit

import (
	"testing"
	"time"
)

func TestBackoff(t *testing.T) {
	const low, high = 100 * time.Millisecond, time.Second
	for failed, want := range []time.Duration{
		0, low, 2 * low, 4 * low, 8 * low, high, high,
	} {
		if got := backoff(failed, low, high); got != want {
			t.Errorf("backoff(%d) = %v, want %v", failed, got, want)
		}
	}
	if got := backoff(1<<30, low, high); got != high {
		t.Errorf("after many failures: %v", got)
	}
	if got := backoff(1, high, high); got != high {
		t.Errorf("low equal to high: %v", got)
	}
	for range 1000 {
		if got := jitter(high); got < high/2 || got > high {
			t.Fatalf("jitter(%v) = %v", high, got)
		}
	}
}
