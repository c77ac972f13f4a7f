package backoff_test

import (
	"math"
	"testing"
	"time"

	"github.com/watermill-once/once/internal/backoff"
)

func TestDelayGrowsByTheFactorUpToTheMaximum(t *testing.T) {
	for name, test := range map[string]struct {
		e    backoff.Exponential
		want []time.Duration
	}{
		"doubles by default":    {backoff.Exponential{Base: 50, Max: 500}, []time.Duration{50, 100, 200, 400, 500, 500}},
		"other factor":          {backoff.Exponential{Base: 1, Max: 100, Factor: 5}, []time.Duration{1, 5, 25, 100, 100}},
		"constant":              {backoff.Exponential{Base: 7, Max: 100, Factor: 1}, []time.Duration{7, 7, 7}},
		"base over maximum":     {backoff.Exponential{Base: 7, Max: 5}, []time.Duration{5, 5}},
		"base is zero":          {backoff.Exponential{Max: 5}, []time.Duration{0, 0}},
		"base is negative":      {backoff.Exponential{Base: -1, Max: 5}, []time.Duration{0, 0}},
		"no maximum":            {backoff.Exponential{Base: 3, Max: math.MaxInt64}, []time.Duration{3, 6, 12}},
		"maximum is reached":    {backoff.Exponential{Base: 3, Max: 12}, []time.Duration{3, 6, 12, 12}},
		"jitter without chance": {backoff.Exponential{Base: 10, Max: 20, Jitter: 1}, []time.Duration{10, 20, 20}},
	} {
		t.Run(name, func(t *testing.T) {
			for i, want := range test.want {
				if got := test.e.Delay(i+1, 0); got != want {
					t.Fatalf("attempt %d: test.e.Delay(i+1, 0) is %v, want %v", i+1, got, want)
				}
			}
			if got := test.e.Delay(0, 0); got != test.want[0] {
				t.Fatalf("test.e.Delay(0, 0) is %v, want %v", got, test.want[0])
			}
			if got := test.e.Delay(-5, 0); got != test.want[0] {
				t.Fatalf("test.e.Delay(-5, 0) is %v, want %v", got, test.want[0])
			}
		})
	}
}

func TestDelayDoesNotOverflow(t *testing.T) {
	for _, longest := range []time.Duration{math.MaxInt64, math.MaxInt64 - 1, time.Hour} {
		for _, attempts := range []int{63, 64, 1000, 2000, math.MaxInt} {
			for _, factor := range []float64{2, 5, 1e300} {
				e := backoff.Exponential{Base: time.Second, Max: longest, Factor: factor}
				if got := e.Delay(attempts, 0); got != longest {
					t.Fatalf("e.Delay(attempts, 0) is %v, want %v", got, longest)
				}
				e.Jitter = 0.5
				if got := e.Delay(attempts, 0.9); got <= 0 {
					t.Fatalf("e.Delay(attempts, 0.9) is %v, want more than 0", got)
				}
			}
		}
	}
	if got := (backoff.Exponential{Max: time.Hour}.Delay(2000, 0.5)); got != 0 {
		t.Fatalf("Max: time.Hour.Delay(2000, 0.5) is %v, want 0", got)
	}
}

func TestJitterTakesUpToItsShareAway(t *testing.T) {
	e := backoff.Exponential{Base: 100, Max: 1000, Jitter: 0.2}
	if got := e.Delay(1, 0); got != 100 {
		t.Fatalf("e.Delay(1, 0) is %v, want 100", got)
	}
	if got := e.Delay(1, 0.5); got != 90 {
		t.Fatalf("e.Delay(1, 0.5) is %v, want 90", got)
	}
	if got := e.Delay(10, 1); got != 800 {
		t.Fatalf("e.Delay(10, 1) is %v, want 800", got)
	}
	for range 1000 {
		delay := e.Jittered(2)
		if delay <= 159 {
			t.Fatalf("delay is %v, want more than 159", delay)
		}
		if delay > 200 {
			t.Fatalf("delay is %v, want at most 200", delay)
		}
	}
}

func TestTotalIsTheSumOfTheDelays(t *testing.T) {
	for _, e := range []backoff.Exponential{
		{Base: 50, Max: 500},
		{Base: 7, Max: 100, Factor: 1},
		{Base: 1, Max: 3000, Factor: 5, Jitter: 0.2},
		{Max: 5},
	} {
		var sum time.Duration
		if got := e.Total(0); got != 0 {
			t.Fatalf("e.Total(0) is %v, want 0", got)
		}
		for attempts := 1; attempts < 20; attempts++ {
			sum += e.Delay(attempts, 0)
			if got := e.Total(attempts); got != sum {
				t.Fatalf("e.Total(attempts) is %v, want %v", got, sum)
			}
		}
	}
}

func TestTotalDoesNotOverflow(t *testing.T) {
	for _, e := range []backoff.Exponential{
		{Base: time.Hour, Max: time.Hour, Factor: 1},
		{Base: time.Hour, Max: 24 * time.Hour},
		{Base: time.Hour, Max: math.MaxInt64},
	} {
		if got := e.Total(math.MaxInt); got != math.MaxInt64 {
			t.Fatalf("e.Total(math.MaxInt) is %v, want %v", got, math.MaxInt64)
		}
	}
}
