package rabbit

import (
	"math/rand/v2"
	"time"
)

// backoff is the pause before the next attempt to connect, after so many that
// failed: none, then low, doubling up to high.
func backoff(failed int, low, high time.Duration) time.Duration {
	if failed == 0 {
		return 0
	}
	pause := low
	for range failed - 1 {
		if pause >= high/2 {
			return high
		}
		pause *= 2
	}
	return min(pause, high)
}

// jitter spreads clients that lost the same broker at the same moment.
func jitter(pause time.Duration) time.Duration {
	if pause <= 0 {
		return 0
	}
	return pause/2 + rand.N(pause/2+1)
}
