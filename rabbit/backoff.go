package rabbit

import (
	"context"
	"time"

	"github.com/watermill-once/once/internal/backoff"
)

// retryPause limits the pause between attempts to connect or to consume.
type retryPause struct {
	low, high time.Duration
}

// wait pauses before the next attempt. failed is the number of failed attempts before
// it. wait returns false if ctx has ended.
func (p retryPause) wait(ctx context.Context, failed int) bool {
	return sleep(ctx, pauseAfter(failed, p.low, p.high))
}

// worked reports whether an attempt succeeded that began at the given time. A
// connection that is lost again within the longest pause counts as a failed attempt.
func (p retryPause) worked(began time.Time) bool { return time.Since(began) >= p.high }

// sleep waits for the pause. It returns false if ctx has ended first.
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

// pauseAfter returns the pause after the given number of failed attempts. If failed is
// 0, it is 0. Otherwise it is low, doubled after each further failure, up to high. A
// random part of it, at most half, is left out, so that clients that have lost the same
// broker do not reconnect at the same moment.
func pauseAfter(failed int, low, high time.Duration) time.Duration {
	if failed == 0 {
		return 0
	}
	return backoff.Exponential{Base: low, Max: high, Jitter: 0.5}.Jittered(failed)
}
