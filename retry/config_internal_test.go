package retry

import (
	"errors"
	"math"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/internal/parkedrows"
	"github.com/watermill-once/once/schema"
)

// The documented defaults and limits must be the same as in the code.
func TestConfigHasTheDocumentedDefaultsAndLimits(t *testing.T) {
	t.Parallel()
	c := Config{}.withDefaults()
	for name, field := range map[string]struct {
		got, want time.Duration
	}{
		"CrashBudget":         {time.Duration(c.CrashBudget), 3},
		"Lease":               {c.Lease, 30 * time.Second},
		"PollInterval":        {c.PollInterval, 500 * time.Millisecond},
		"Concurrency":         {time.Duration(c.Concurrency), time.Duration(4 * runtime.GOMAXPROCS(0))},
		"Concurrency, SQLite": {time.Duration(Config{Schema: schema.Config{Dialect: schema.SQLite}}.withDefaults().Concurrency), 1},
		"BufferBytes":         {time.Duration(c.BufferBytes), 64 << 20},
		"UnackedWait":         {c.UnackedWait, 10 * time.Minute},
		"CloseTimeout":        {c.CloseTimeout, 10 * time.Second},
		"Policy.Max":          {c.Policy.Max, time.Hour},
		"Policy.Jitter":       {time.Duration(c.Policy.Jitter * 100), 20},
	} {
		if field.got != field.want {
			t.Errorf("%s is %v, want %v", name, field.got, field.want)
		}
	}
	if c.Logger == nil {
		t.Error("no logger")
	}

	for name, field := range map[string]struct {
		set         func(c *Config, value int)
		least, most int // most is 0 if there is no limit
	}{
		"KeyOrder":      {func(c *Config, n int) { c.KeyOrder = KeyOrder(n) }, int(Unordered), int(BlockWhileRunning)},
		"CrashBudget":   {func(c *Config, n int) { c.CrashBudget = n }, 0, 0},
		"Concurrency":   {func(c *Config, n int) { c.Concurrency = n }, 0, 0},
		"BufferBytes":   {func(c *Config, n int) { c.BufferBytes = n }, 1, 1 << 40},
		"Lease":         {func(c *Config, n int) { c.Lease = time.Duration(n) }, int(500 * time.Millisecond), 0},
		"PollInterval":  {func(c *Config, n int) { c.PollInterval = time.Duration(n) }, int(time.Millisecond), 0},
		"UnackedWait":   {func(c *Config, n int) { c.UnackedWait = time.Duration(n) }, 0, 0},
		"CloseTimeout":  {func(c *Config, n int) { c.CloseTimeout = time.Duration(n) }, 0, 0},
		"Policy.Base":   {func(c *Config, n int) { c.Policy.Base = time.Duration(n) }, 0, int(time.Hour)},
		"Policy.Max":    {func(c *Config, n int) { c.Policy.Max = time.Duration(n) }, int(time.Second), 0},
		"Policy.Factor": {func(c *Config, n int) { c.Policy.Factor = float64(n) }, 1, 0},
		"Policy.Jitter": {func(c *Config, n int) { c.Policy.Jitter = float64(n) }, 1, 1},
	} {
		try := func(value int, valid bool) {
			c := Config{}.withDefaults()
			field.set(&c, value)
			if err := c.validate(); valid != (err == nil) || err != nil && !strings.Contains(err.Error(), name) &&
				!strings.Contains(err.Error(), "Policy.Max") {
				t.Errorf("%s = %d: %v", name, value, err)
			}
		}
		try(field.least, true)
		if name != "Policy.Jitter" { // a negative Jitter means no jitter
			try(field.least-1, false)
		}
		if field.most > 0 {
			try(field.most, true)
			try(field.most+1, false)
		}
	}
}

func TestZeroPolicyHasDocumentedDelays(t *testing.T) {
	p := Config{}.withDefaults().Policy
	var got []time.Duration
	for round := 1; round <= p.Delayed; round++ {
		got = append(got, p.backoff().Delay(round, 0))
	}
	want := []time.Duration{time.Second, 5 * time.Second, 25 * time.Second, 125 * time.Second, 625 * time.Second}
	if len(got) != len(want) || p.Immediate != 2 {
		t.Fatalf("%d immediate tries, delays %v", p.Immediate, got)
	}
	for i := range want {
		if got[i] != want[i] {
			t.Fatalf("delays are %v, want %v", got, want)
		}
	}
}

func TestNegativeCountsMeanNone(t *testing.T) {
	p := Config{Policy: Policy{Immediate: -1, Delayed: -1, Jitter: -1}}.withDefaults().Policy
	if p.Immediate != 0 || p.Delayed != 0 || p.Jitter != 0 {
		t.Fatalf("%+v", p)
	}
}

func TestZeroFieldsOfAClassAreThoseOfThePolicy(t *testing.T) {
	c := Config{
		Policy:  Policy{Immediate: -1, Delayed: 7, Base: time.Minute, Factor: 2, Max: 2 * time.Hour, Jitter: -1},
		Classes: []Class{{Match: errIs, Policy: Policy{Delayed: -1, Factor: 3}}},
	}.withDefaults()
	if got, want := c.Classes[0].Policy, (Policy{Base: time.Minute, Factor: 3, Max: 2 * time.Hour}); got != want {
		t.Errorf("the class has %+v, want %+v", got, want)
	}
}

func TestConfigErrorNamesField(t *testing.T) {
	for field, config := range map[string]Config{
		"Policy.Base":              {Policy: Policy{Base: -1}},
		"Policy.Max":               {Policy: Policy{Base: time.Hour, Max: time.Minute}},
		"Policy.Factor":            {Policy: Policy{Factor: 0.5}},
		"Policy.Jitter":            {Policy: Policy{Jitter: 1.5}},
		"Classes[0].Match is nil":  {Classes: []Class{{}}},
		"Classes[1].Policy.Factor": {Classes: []Class{{Match: errIs}, {Match: errIs, Policy: Policy{Factor: 0.5}}}},
		"CrashBudget":              {CrashBudget: -1},
		"Lease is 499ms":           {Lease: 499 * time.Millisecond},
		"PollInterval":             {PollInterval: -1},
		"Concurrency":              {Concurrency: -1},
		"UnackedWait":              {UnackedWait: -1},
		"Prefix":                   {Schema: schema.Config{Prefix: "a b"}},
		"db":                       {},
	} {
		if _, err := New(nil, config); err == nil || !strings.Contains(err.Error(), field) {
			t.Errorf("error %v does not name %s", err, field)
		}
	}
}

func errIs(error) bool { return true }

func TestLongestDelayIsThatOfTheLongestPolicy(t *testing.T) {
	for want, config := range map[time.Duration]Config{
		781 * time.Second:              {},
		0:                              {Policy: Policy{Delayed: -1}},
		2 * time.Hour:                  {Classes: []Class{{Match: errIs, Policy: Policy{Delayed: 2, Base: time.Hour}}}},
		31*time.Second + 2*time.Minute: {Policy: Policy{Delayed: 5, Max: time.Minute}},
		5 * time.Second:                {Policy: Policy{Delayed: 5, Factor: 1}},
		math.MaxInt64:                  {Policy: Policy{Delayed: math.MaxInt}},
	} {
		if got := config.LongestDelay(); got != want {
			t.Errorf("%+v: %v, want %v", config, got, want)
		}
	}
}

// For every accepted policy, delays must be neither negative nor longer than Max, and
// their sum must not overflow.
func FuzzPolicy(f *testing.F) {
	f.Add(2, 5, int64(time.Second), 5.0, int64(time.Hour), 0.2, 3, 0.5)
	f.Add(0, 1000, int64(1), 1.0, int64(math.MaxInt64), -1.0, 1000, 0.0)
	f.Add(-1, 64, int64(time.Second), 2.0, int64(math.MaxInt64), 1.0, 64, 0.0)
	f.Add(0, 2000, int64(math.MaxInt64/4), 1.0001, int64(math.MaxInt64), 0.0, 2000, 0.999)
	f.Add(0, 3, int64(time.Second), math.Inf(1), int64(time.Hour), math.Inf(-1), math.MaxInt, 0.1)
	f.Fuzz(func(t *testing.T, immediate, delayed int, base int64, factor float64, most int64, jitter float64, round int, chance float64) {
		p := Config{Policy: Policy{
			Immediate: immediate, Delayed: delayed % 5000, Base: time.Duration(base), Factor: factor,
			Max: time.Duration(most), Jitter: jitter,
		}}.withDefaults().Policy
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

// The pauses must become longer, so that an unreachable database does not get twenty
// queries a second. But they must not become so long that the end of the outage is
// noticed late.
func TestPauseAfterUndecidedTryDoublesUpToFiveSeconds(t *testing.T) {
	t.Parallel()
	closing := make(chan struct{})
	close(closing) // ends each pause immediately
	a := &attempt{
		Retries:  &Retries{config: Config{Logger: watermill.NopLogger{}}},
		ctx:      t.Context(),
		delivery: &parkedrows.Delivery{Closing: closing},
		original: message.NewMessage("m1", nil),
	}
	for try, want := range []time.Duration{
		50 * time.Millisecond, 100 * time.Millisecond, 200 * time.Millisecond, 400 * time.Millisecond, 800 * time.Millisecond,
		1600 * time.Millisecond, 3200 * time.Millisecond, 5 * time.Second, 5 * time.Second,
	} {
		a.waitUndecided(errors.New("undecided"))
		if got := undecidedPauses.Delay(a.undecided.pauses, 0); got != want {
			t.Errorf("the pause after try %d is %v, want %v", try+1, got, want)
		}
	}
}
