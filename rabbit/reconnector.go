package rabbit

import (
	"context"
	"errors"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"

	"github.com/watermill-once/once/internal/backoff"
	"github.com/watermill-once/once/internal/telemetry"
)

var errConnectionClosed = errors.New("the connection is closed")

// reconnector keeps one connection up, and logs changes, but not every attempt.
type reconnector struct {
	ctx      context.Context
	config   amqp.ConnectionConfig
	dial     dialSettings
	pause    retryPause
	logger   watermill.LoggerAdapter
	connects *telemetry.Counter
}

type connectionUser interface {
	// serve uses the connection until it is lost or no longer needed. graceful says whether the
	// broker can be expected to reply to a close.
	serve(c *connection) (graceful bool, reason error)

	// disconnected is called after a failed attempt to connect, and after a loss.
	disconnected(reason error)
}

func (r *reconnector) run(user connectionUser) {
	lossLogged := false
	disconnected := func(err error) {
		user.disconnected(err)
		if !lossLogged && r.ctx.Err() == nil {
			r.logger.Error("RabbitMQ connection unavailable, retrying", err, nil)
			lossLogged = true
		}
	}
	for failed := 0; r.pause.wait(r.ctx, failed); {
		c, err := connect(r.ctx, r.config, r.dial)
		r.connects.Add(1, telemetry.Succeeded(err))
		if err != nil {
			disconnected(err)
			failed++
			continue
		}
		r.logger.Info("RabbitMQ connection established", watermill.LogFields{"node": c.node})
		lossLogged = false

		began := time.Now()
		graceful, reason := user.serve(c)
		disconnected(reason)
		c.end(graceful)
		failed = r.pause.failures(failed, began)
	}
}

type retryPause struct {
	low, high time.Duration
}

// failed is the number of failed attempts so far.
func (p retryPause) wait(ctx context.Context, failed int) bool {
	return sleep(ctx, pauseAfter(failed, p.low, p.high))
}

// failures returns how many attempts have failed in a row when a connection or a consumer has
// ended: 0 if it has lasted at least as long as the longest pause. Otherwise this attempt, which
// began at began, counts as failed, too.
func (p retryPause) failures(failed int, began time.Time) int {
	if time.Since(began) >= p.high {
		return 0
	}
	return failed + 1
}

// sleep returns false if ctx ends first.
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

// pauseAfter has no pause before the first attempt. A random part, at most half, is subtracted, so
// that clients of one broker do not reconnect at the same moment.
func pauseAfter(failed int, low, high time.Duration) time.Duration {
	if failed == 0 {
		return 0
	}
	return backoff.Exponential{Base: low, Max: high, Jitter: 0.5}.Jittered(failed)
}
