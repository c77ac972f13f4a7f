package rabbit

import (
	"context"
	"math/rand/v2"
	"time"
)

// pace is how long to wait between attempts to connect, or to consume.
type pace struct {
	low, high time.Duration
}

// pause waits before the next attempt, after so many that failed, and reports
// whether there is to be one.
func (p pace) pause(ctx context.Context, failed int) bool {
	return sleep(ctx, jitter(backoff(failed, p.low, p.high)))
}

// lasted reports whether what began then worked. What is lost at once counts as
// an attempt that failed.
func (p pace) lasted(began time.Time) bool { return time.Since(began) >= p.high }

// sleep reports false if ctx ended before the pause did.
func sleep(ctx context.Context, pause time.Duration) bool {
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return ctx.Err() == nil
	}
}

// backoff is the pause before the next attempt, after so many that failed:
// none, then low, doubling up to high.
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
