package forwarder

import (
	"math"
	"testing"
	"time"
)

// The jitter of the longest possible pause must not overflow. Otherwise the pause would
// become negative and end immediately.
func TestJitterOfTheLongest(t *testing.T) {
	for _, d := range []time.Duration{0, time.Second, math.MaxInt64 / 2, math.MaxInt64} {
		for range 100 {
			if got := jitter(d); got < d/4 {
				t.Fatalf("%v became %v", d, got)
			}
		}
	}
}

// README.md and Config.Backoff promise that a refused message becomes a dead letter after
// about an hour by default.
func TestDefaultAttemptsTakeAboutAnHour(t *testing.T) {
	config := Config{}.withDefaults()
	var total time.Duration
	for attempt := 1; attempt < config.MaxAttempts; attempt++ {
		total += config.Backoff(attempt)
	}
	if total < 50*time.Minute || total > 70*time.Minute {
		t.Errorf("%d attempts take %v", config.MaxAttempts, total)
	}
}
