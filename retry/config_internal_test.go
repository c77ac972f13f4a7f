package retry

import (
	"runtime"
	"strings"
	"testing"
	"time"

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
