package rabbit

import (
	"context"
	"math/rand/v2"
	"time"
)

// retryPause bounds the pause between attempts to connect or to consume.
type retryPause struct {
	low, high time.Duration
}

// wait pauses before the next attempt, after failed failures. It reports false
// if ctx has ended.
func (p retryPause) wait(ctx context.Context, failed int) bool {
	return sleep(ctx, jitter(backoff(failed, p.low, p.high)))
}

// worked reports whether the attempt that began at that time succeeded. A
// connection that is lost at once counts as a failed attempt.
func (p retryPause) worked(began time.Time) bool { return time.Since(began) >= p.high }

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

// backoff returns the pause after failed failures: none before the first
// attempt, then low, doubling up to high.
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

// jitter returns between half of pause and all of it, so that clients that lost
// the same broker do not reconnect at the same moment.
func jitter(pause time.Duration) time.Duration {
	if pause <= 0 {
		return 0
	}
	return pause/2 + rand.N(pause/2+1)
}
