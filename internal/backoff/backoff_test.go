package backoff_test

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

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
				require.Equal(t, want, test.e.Delay(i+1, 0), "attempt %d", i+1)
			}
			require.Equal(t, test.want[0], test.e.Delay(0, 0))
			require.Equal(t, test.want[0], test.e.Delay(-5, 0))
		})
	}
}

func TestDelayDoesNotOverflow(t *testing.T) {
	for _, longest := range []time.Duration{math.MaxInt64, math.MaxInt64 - 1, time.Hour} {
		for _, attempts := range []int{63, 64, 1000, 2000, math.MaxInt} {
			for _, factor := range []float64{2, 5, 1e300} {
				e := backoff.Exponential{Base: time.Second, Max: longest, Factor: factor}
				require.Equal(t, longest, e.Delay(attempts, 0))
				e.Jitter = 0.5
				require.Positive(t, e.Delay(attempts, 0.9))
			}
		}
	}
	require.Zero(t, backoff.Exponential{Max: time.Hour}.Delay(2000, 0.5))
}

func TestJitterTakesUpToItsShareAway(t *testing.T) {
	e := backoff.Exponential{Base: 100, Max: 1000, Jitter: 0.2}
	require.Equal(t, time.Duration(100), e.Delay(1, 0))
	require.Equal(t, time.Duration(90), e.Delay(1, 0.5))
	require.Equal(t, time.Duration(800), e.Delay(10, 1))
	for range 1000 {
		delay := e.Jittered(2)
		require.Greater(t, delay, time.Duration(159))
		require.LessOrEqual(t, delay, time.Duration(200))
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
		require.Zero(t, e.Total(0))
		for attempts := 1; attempts < 20; attempts++ {
			sum += e.Delay(attempts, 0)
			require.Equal(t, sum, e.Total(attempts))
		}
	}
}

func TestTotalDoesNotOverflow(t *testing.T) {
	for _, e := range []backoff.Exponential{
		{Base: time.Hour, Max: time.Hour, Factor: 1},
		{Base: time.Hour, Max: 24 * time.Hour},
		{Base: time.Hour, Max: math.MaxInt64},
	} {
		require.Equal(t, time.Duration(math.MaxInt64), e.Total(math.MaxInt))
	}
}
