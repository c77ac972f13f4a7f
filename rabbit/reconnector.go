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

// reconnector keeps one connection up until its context ends. It logs when the connection
// is established or lost, but not every attempt.
type reconnector struct {
	ctx      context.Context
	config   amqp.ConnectionConfig
	dial     dialSettings
	pause    retryPause
	logger   watermill.LoggerAdapter
	connects *telemetry.Counter
}

// connectionUser uses the connections that a reconnector opens.
type connectionUser interface {
	// serve uses the connection until the connection is lost or is no longer needed, and
	// returns the reason. The result graceful says whether the broker can be expected to
	// reply to a close.
	serve(c *connection) (graceful bool, reason error)

	// disconnected is called with the reason when an attempt to connect has failed, and
	// when the connection was lost.
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
		r.logger.Info("RabbitMQ connection established", nil)
		lossLogged = false

		began := time.Now()
		graceful, reason := user.serve(c)
		disconnected(reason)
		c.end(graceful)
		failed = r.pause.failures(failed, began)
	}
}

// retryPause contains the shortest and the longest pause between attempts to connect or
// to consume.
type retryPause struct {
	low, high time.Duration
}

// wait pauses before the next attempt. failed is the number of failed
// attempts so far. If ctx ends first, wait returns false.
func (p retryPause) wait(ctx context.Context, failed int) bool {
	return sleep(ctx, pauseAfter(failed, p.low, p.high))
}

// failures returns how many attempts have failed in a row when a connection or a
// consumer has ended. It returns 0 if the connection or the consumer has lasted at least
// as long as the longest pause. Otherwise this attempt counts as failed too, and the next
// pause is longer. failed is the number of failed attempts before. began is
// the time at which the connection was opened or the consumer was started.
func (p retryPause) failures(failed int, began time.Time) int {
	if time.Since(began) >= p.high {
		return 0
	}
	return failed + 1
}

// sleep waits for the given time and returns true. If ctx ends first, it returns false.
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

// pauseAfter returns the pause after the given number of failed attempts. Without a
// failed attempt, the pause is 0. After the first one, the pause has the length low. It
// doubles after each further failed attempt, up to the length high. A random part, at
// most half of the pause, is then subtracted, so that clients that have lost the same
// broker do not reconnect at the same moment.
func pauseAfter(failed int, low, high time.Duration) time.Duration {
	if failed == 0 {
		return 0
	}
	return backoff.Exponential{Base: low, Max: high, Jitter: 0.5}.Jittered(failed)
}
