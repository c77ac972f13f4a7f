package retry

import (
	"math"
	"testing"
	"time"
)

// For every accepted policy, delays must be neither negative nor longer than Max, and
// their sum must not overflow.
func FuzzPolicy(f *testing.F) {
	f.Add(2, 5, int64(time.Second), 5.0, int64(time.Hour), 0.2, 3, 0.5)
	f.Add(0, 1000, int64(1), 1.0, int64(math.MaxInt64), -1.0, 1000, 0.0)
	f.Add(-1, 64, int64(time.Second), 2.0, int64(math.MaxInt64), 1.0, 64, 0.0)
	f.Add(0, 2000, int64(math.MaxInt64/4), 1.0001, int64(math.MaxInt64), 0.0, 2000, 0.999)
	f.Add(0, 3, int64(time.Second), math.Inf(1), int64(time.Hour), math.Inf(-1), math.MaxInt, 0.1)
	f.Fuzz(func(t *testing.T, immediate, delayed int, base int64, factor float64, most int64, jitter float64, round int, chance float64) {
		p := Policy{
			Immediate: immediate, Delayed: delayed % 5000, Base: time.Duration(base), Factor: factor,
			Max: time.Duration(most), Jitter: jitter,
		}.withDefaults()
		if p.validate("Policy") != nil || !(chance >= 0 && chance < 1) || round < 1 {
			return
		}
		if d := p.backoff().Delay(round, chance); d < 0 || d > p.Max {
			t.Errorf("%+v: round %d is delayed by %v", p, round, d)
		}
		if low, high := p.backoff().Delay(round, 0), p.backoff().Delay(round, chance); low < high {
			t.Errorf("%+v: round %d is delayed by %v, and with jitter by %v", p, round, low, high)
		}
		longest := p.backoff().Delay(max(1, p.Delayed), 0)
		if sum := p.longestDelay(); sum < 0 || p.Delayed > 0 && sum < longest-longest/1000 {
			t.Errorf("%+v: the sum is %v", p, sum)
		}
	})
}
