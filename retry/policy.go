package retry

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/watermill-once/once/internal/backoff"
)

// Policy determines how many times a message is tried, and the delays between the tries. With the
// zero value, a message is tried three times immediately. If it still fails, three more tries
// follow after each of the delays 1 s, 5 s, 25 s, 2 min and 10 min.
//
// A message is tried at most (Immediate+1) x (Delayed+1) times.
type Policy struct {
	// Immediate is the number of tries without a delay after a failed try. Most failures of a
	// transaction do not occur again. Defaults to 2. A negative value means no such tries.
	Immediate int

	// Delayed is the number of further rounds. Before each of them there is a delay, during
	// which the message is parked. Defaults to 5. A negative value means no further rounds.
	Delayed int

	// Base is the delay before the first delayed round. Defaults to 1 second.
	Base time.Duration

	// Factor is the number by which the delay is multiplied for each further round.
	// Defaults to 5.
	Factor float64

	// Max is the longest delay. Defaults to 1 hour.
	Max time.Duration

	// Jitter is the maximum fraction by which a delay is shortened at random, so that messages that
	// failed together are not all tried again together. With 0.2, a delay is up to 20 % shorter.
	// Defaults to 0.2. A negative value means no jitter.
	Jitter float64
}

// or fills the zero fields of p from other. Negative values become 0.
func (p Policy) or(other Policy) Policy {
	return Policy{
		Immediate: max(0, cmp.Or(p.Immediate, other.Immediate)),
		Delayed:   max(0, cmp.Or(p.Delayed, other.Delayed)),
		Base:      cmp.Or(p.Base, other.Base),
		Factor:    cmp.Or(p.Factor, other.Factor),
		Max:       cmp.Or(p.Max, other.Max),
		Jitter:    max(0, cmp.Or(p.Jitter, other.Jitter)),
	}
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

// backoff returns the delays of the delayed rounds, which begin with number 1.
func (p Policy) backoff() backoff.Exponential {
	return backoff.Exponential{Base: p.Base, Max: p.Max, Factor: p.Factor, Jitter: p.Jitter}
}

func (p Policy) longestDelay() time.Duration { return p.backoff().Total(p.Delayed) }
