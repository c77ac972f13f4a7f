package forwarder

import (
	"math"
	"math/rand/v2"
	"time"

	"github.com/watermill-once/once/internal/backoff"
)

// Exponential returns a function for Config.Backoff. The parameter first is the pause
// after the first failed attempt. The pause doubles after each further failed attempt,
// up to the parameter limit.
func Exponential(first, limit time.Duration) func(attempt int) time.Duration {
	delays := backoff.Exponential{Base: first, Max: limit}
	return func(attempt int) time.Duration { return delays.Delay(attempt, 0) }
}

// pauses returns how long to pause after failures that affect all messages, for example
// because the broker or the database is down.
var pauses = Exponential(50*time.Millisecond, 5*time.Second)

// jitter increases or decreases d by a random amount, at most a fifth. Messages that
// failed at the same time are then not tried again at the same time.
func jitter(d time.Duration) time.Duration {
	d = min(d, math.MaxInt64/2) // so that adding the jitter cannot overflow
	return d + time.Duration((rand.Float64()*2-1)*float64(d)/5)
}
