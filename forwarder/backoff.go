package forwarder

import (
	"math"
	"math/rand/v2"
	"time"

	"github.com/watermill-once/once/internal/backoff"
)

// Exponential returns a back-off that waits first after the first failed
// attempt, twice as long after each further one, and never longer than most.
func Exponential(first, most time.Duration) func(attempt int) time.Duration {
	delays := backoff.Exponential{Base: first, Max: most}
	return func(attempt int) time.Duration { return delays.Delay(attempt, 0) }
}

// pauses between attempts at something that does not work at all: the broker,
// the database.
var pauses = Exponential(50*time.Millisecond, 5*time.Second)

// jitter spreads d over a fifth in either direction, so that what failed
// together does not come back together.
func jitter(d time.Duration) time.Duration {
	d = min(d, math.MaxInt64/2) // or a fifth more of "never" is in the past
	return d + time.Duration((rand.Float64()*2-1)*float64(d)/5)
}
