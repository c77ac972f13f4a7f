// Package backoff computes delays between attempts, and the size of batches after failures.
package backoff

import (
	"cmp"
	"math"
	"math/rand/v2"
	"time"
)

// Exponential computes delays that grow by a factor. It is safe for concurrent use.
type Exponential struct {
	// Base is the delay after the first attempt. If it is not positive, all delays are zero.
	Base time.Duration

	Max time.Duration

	// Factor multiplies the delay after each further attempt. Defaults to 2.
	Factor float64

	// Jitter is the maximum fraction, from 0 to 1, by which a delay is shortened at random, so that
	// attempts that failed together do not run together again. Defaults to 0.
	Jitter float64
}

// Delay returns the delay after this many attempts, at least one, shortened by the fraction Jitter
// times chance, a random number in [0, 1), or 0.
func (e Exponential) Delay(attempts int, chance float64) time.Duration {
	if e.Base <= 0 {
		return 0 // zero times an infinite power would be NaN
	}
	full := float64(e.Base) * math.Pow(cmp.Or(e.Factor, 2), float64(max(attempts, 1)-1))
	delay := min(full, float64(e.Max)) * (1 - e.Jitter*chance)
	if delay >= float64(e.Max) { // float64(e.Max) may be larger than the largest Duration
		return e.Max
	}
	return time.Duration(delay)
}

// Jittered is Delay with a random chance.
func (e Exponential) Jittered(attempts int) time.Duration {
	return e.Delay(attempts, rand.Float64())
}

// Total adds up the first delays, without jitter, up to the longest possible Duration.
func (e Exponential) Total(attempts int) time.Duration {
	var sum time.Duration
	for attempt := 1; attempt <= attempts; attempt++ {
		delay := e.Delay(attempt, 0)
		if delay == 0 {
			return sum
		}
		if e.Factor == 1 || delay == e.Max { // all further delays are equally long
			rest := float64(attempts-attempt+1) * float64(delay)
			if rest >= float64(math.MaxInt64-sum) {
				return math.MaxInt64
			}
			return sum + time.Duration(rest)
		}
		if delay > math.MaxInt64-sum {
			return math.MaxInt64
		}
		sum += delay
	}
	return sum
}

// Limit limits the size of batches: one that fails, for example because of a timeout, may succeed
// in smaller parts. Each failure halves the limit, and each success doubles it, up to the full
// size. The zero value allows the full size.
type Limit struct {
	halvings int
}

// Of returns how many of n items to process at once. The result is at least 1.
func (l *Limit) Of(n int) int { return max(1, n>>l.halvings) }

// Did updates the limit after a batch has succeeded or failed.
func (l *Limit) Did(succeeded bool) {
	const maxHalvings = 12
	if succeeded {
		l.halvings = max(0, l.halvings-1)
	} else {
		l.halvings = min(maxHalvings, l.halvings+1)
	}
}
