package forwarder

import (
	"math"
	"math/rand/v2"
	"time"

	"github.com/watermill-once/once/internal/backoff"
)

// Exponential returns a function for Config.Backoff. The pause after the first failed
// attempt is first. It doubles after each further failed attempt, up to limit.
func Exponential(first, limit time.Duration) func(attempt int) time.Duration {
	delays := backoff.Exponential{Base: first, Max: limit}
	return func(attempt int) time.Duration { return delays.Delay(attempt, 0) }
}

// pauses returns the pause after work that failed as a whole, for example because the
// broker or the database is down.
var pauses = Exponential(50*time.Millisecond, 5*time.Second)

// jitter changes d at random by at most a fifth, so that messages that failed at the
// same time are not all tried again at the same time.
func jitter(d time.Duration) time.Duration {
	d = min(d, math.MaxInt64/2) // so that adding the jitter cannot overflow
	return d + time.Duration((rand.Float64()*2-1)*float64(d)/5)
}
