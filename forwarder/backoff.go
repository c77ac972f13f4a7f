package forwarder

import (
	"math"
	"math/rand/v2"
	"time"

	"github.com/watermill-once/once/internal/backoff"
)

// Exponential returns a back-off that waits for first after the first failed
// attempt, twice as long after each further attempt, and at most for most.
func Exponential(first, most time.Duration) func(attempt int) time.Duration {
	delays := backoff.Exponential{Base: first, Max: most}
	return func(attempt int) time.Duration { return delays.Delay(attempt, 0) }
}

// pauses is the back-off of work that does not work at all, for example because
// the broker or the database is down.
var pauses = Exponential(50*time.Millisecond, 5*time.Second)

// jitter changes d by at most a fifth, so that messages that failed together do
// not come back together.
func jitter(d time.Duration) time.Duration {
	d = min(d, math.MaxInt64/2) // leave headroom so that the jitter cannot overflow
	return d + time.Duration((rand.Float64()*2-1)*float64(d)/5)
}
