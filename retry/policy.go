package retry

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"time"
)

// Policy says how often a message is tried and how long to wait in between. It
// is a pure function of the attempt. The zero value tries three times at once
// and then, after 1 s, 5 s, 25 s, 2 min and 10 min, three times again.
//
// A message is tried (Immediate+1) x (Delayed+1) times at most.
type Policy struct {
	// Immediate is how many further tries follow a failed one without delay;
	// most failures of a transaction are over by then. Defaults to 2; negative
	// means none.
	Immediate int

	// Delayed is how many further rounds follow, each after a delay, with the
	// message parked. Defaults to 5; negative means none.
	Delayed int

	// Base is the delay before the first delayed round. Defaults to 1 second.
	Base time.Duration

	// Factor is what each further delay is multiplied by. Defaults to 5.
	Factor float64

	// Max bounds a delay. Defaults to 1 hour.
	Max time.Duration

	// Jitter is the share of a delay that is left to chance, so that messages
	// that failed together are not tried together: 0.2 is up to 20 % less.
	// Defaults to 0.2; negative means none.
	Jitter float64
}

func (p Policy) withDefaults() Policy {
	p.Immediate = defaultCount(p.Immediate, 2)
	p.Delayed = defaultCount(p.Delayed, 5)
	p.Base = cmp.Or(p.Base, time.Second)
	p.Factor = cmp.Or(p.Factor, 5)
	p.Max = cmp.Or(p.Max, time.Hour)
	switch {
	case p.Jitter == 0:
		p.Jitter = 0.2
	case p.Jitter < 0:
		p.Jitter = 0
	}
	return p
}

func defaultCount(n, otherwise int) int {
	switch {
	case n == 0:
		return otherwise
	case n < 0:
		return 0
	}
	return n
}

func (p Policy) validate(field string) error {
	var errs []error
	if p.Base < 0 {
		errs = append(errs, fmt.Errorf("%s.Base is %v: negative", field, p.Base))
	}
	if p.Max < p.Base {
		errs = append(errs, fmt.Errorf("%s.Max is %v: less than Base, %v", field, p.Max, p.Base))
	}
	if p.Factor < 1 || math.IsNaN(p.Factor) {
		errs = append(errs, fmt.Errorf("%s.Factor is %v: less than 1", field, p.Factor))
	}
	if p.Jitter > 1 || math.IsNaN(p.Jitter) {
		errs = append(errs, fmt.Errorf("%s.Jitter is %v: more than 1", field, p.Jitter))
	}
	return errors.Join(errs...)
}

// delay returns how long to wait before delayed round number round (1 is the
// first). chance is a number in [0, 1).
func (p Policy) delay(round int, chance float64) time.Duration {
	full := float64(p.Base) * math.Pow(p.Factor, float64(round-1))
	full = min(full, float64(p.Max)) * (1 - p.Jitter*chance)
	if full >= float64(p.Max) { // as a float64 it may be over all Durations
		return p.Max
	}
	return time.Duration(full)
}

// jittered is the delay before a delayed round, with a chance of its own.
func (p Policy) jittered(round int) time.Duration { return p.delay(round, rand.Float64()) }

// total is the sum of all delays.
func (p Policy) total() time.Duration {
	var sum time.Duration
	for round := 1; round <= p.Delayed; round++ {
		delay := p.delay(round, 0)
		if p.Factor == 1 || delay == p.Max { // as all after it
			rest := float64(p.Delayed-round+1) * float64(delay)
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
