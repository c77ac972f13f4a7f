package rabbit

import (
	"context"
	"time"

	"github.com/watermill-once/once/internal/backoff"
)

// retryPause bounds the pause between attempts to connect or to consume.
type retryPause struct {
	low, high time.Duration
}

// wait pauses before the next attempt, after failed failures. It reports false
// if ctx has ended.
func (p retryPause) wait(ctx context.Context, failed int) bool {
	return sleep(ctx, pauseAfter(failed, p.low, p.high))
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

// pauseAfter returns the pause after failed failures: none before the first
// attempt, then low, doubling up to high. Chance takes up to half of it away, so
// that clients that lost the same broker do not reconnect at the same moment.
func pauseAfter(failed int, low, high time.Duration) time.Duration {
	if failed == 0 {
		return 0
	}
	return backoff.Exponential{Base: low, Max: high, Jitter: 0.5}.Jittered(failed)
}
