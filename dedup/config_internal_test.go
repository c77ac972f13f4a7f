package dedup

import (
	"strings"
	"testing"
	"time"
)

// These defaults and limits are documented.
func TestConfigHasTheDocumentedDefaultsAndLimits(t *testing.T) {
	t.Parallel()
	c := Config{}.withDefaults()
	for name, field := range map[string]struct {
		got, want time.Duration
	}{
		"Batch.Size":        {time.Duration(c.Batch.Size), 100},
		"Batch.Wait":        {c.Batch.Wait, 10 * time.Millisecond},
		"Batch.Concurrency": {time.Duration(c.Batch.Concurrency), 1},
		"Retention":         {c.Retention, 30 * 24 * time.Hour},
		"MaxDuplicateAge":   {c.MaxDuplicateAge, 7 * 24 * time.Hour},
		"SweepInterval":     {c.SweepInterval, 10 * time.Minute},
		"LockTimeout":       {c.LockTimeout, 10 * time.Second},
		"IdleTimeout":       {c.IdleTimeout, 5 * time.Minute},
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
		"Batch.Size":        {func(c *Config, n int) { c.Batch.Size = n }, 1, 1000},
		"Batch.Wait":        {func(c *Config, n int) { c.Batch.Wait = time.Duration(n) }, 0, 0},
		"Batch.Concurrency": {func(c *Config, n int) { c.Batch.Concurrency = n }, 0, 0},
		"MaxDuplicateAge":   {func(c *Config, n int) { c.MaxDuplicateAge = time.Duration(n) }, 0, int(30 * 24 * time.Hour)},
		"Retention":         {func(c *Config, n int) { c.Retention = time.Duration(n) }, int(7 * 24 * time.Hour), 0},
		"SweepInterval":     {func(c *Config, n int) { c.SweepInterval = time.Duration(n) }, int(time.Millisecond), 0},
		"LockTimeout":       {func(c *Config, n int) { c.LockTimeout = time.Duration(n) }, int(time.Millisecond), 0},
		"IdleTimeout":       {func(c *Config, n int) { c.IdleTimeout = time.Duration(n) }, int(time.Millisecond), 0},
	} {
		try := func(value int, valid bool) {
			c := Config{}.withDefaults()
			field.set(&c, value)
			if err := c.validate(); valid != (err == nil) || err != nil && !strings.Contains(err.Error(), name) {
				t.Errorf("%s = %d: %v", name, value, err)
			}
		}
		try(field.least, true)
		try(field.least-1, false)
		if field.most > 0 {
			try(field.most, true)
			try(field.most+1, false)
		}
	}
}
