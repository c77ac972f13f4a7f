package forwarder

import (
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/watermill-once/once/schema"
)

// The doc comments of Config promise these defaults and limits.
func TestConfigHasTheDocumentedDefaultsAndLimits(t *testing.T) {
	t.Parallel()
	c := Config{}.withDefaults()
	if c.Backoff == nil || c.Classify == nil || c.Logger == nil {
		t.Errorf("a function or the logger is nil: %+v", c)
	}
	c.Backoff, c.Classify, c.Logger = nil, nil, nil
	if want := (Config{
		Schema: schema.Config{}.WithDefaults(), BatchSize: 1000, Window: 1024, BufferBytes: 64 << 20, Workers: 16,
		PollMin: 5 * time.Millisecond, PollMax: 250 * time.Millisecond, StallTimeout: 10 * time.Second,
		Lease: 15 * time.Second, MaxAttempts: 20, CloseTimeout: 5 * time.Second,
	}); !reflect.DeepEqual(c, want) {
		t.Errorf("got %+v, want %+v", c, want)
	}
	if got := (Config{PollMin: time.Second}).withDefaults().PollMax; got != time.Second {
		t.Errorf("PollMax is %v", got)
	}

	for name, field := range map[string]struct {
		set         func(c *Config, value int)
		least, most int // most is 0 if there is no limit
	}{
		"BatchSize":    {func(c *Config, n int) { c.BatchSize = n }, 1, 100_000},
		"Window":       {func(c *Config, n int) { c.Window = n }, 1, 100_000},
		"BufferBytes":  {func(c *Config, n int) { c.BufferBytes = n }, 1, 1 << 40},
		"Workers":      {func(c *Config, n int) { c.Workers = n }, 1, 10_000},
		"MaxAttempts":  {func(c *Config, n int) { c.MaxAttempts = n }, 1, 1_000_000},
		"PollMin":      {func(c *Config, n int) { c.PollMin = time.Duration(n) }, int(time.Millisecond), 0},
		"PollMax":      {func(c *Config, n int) { c.PollMax = time.Duration(n) }, int(5 * time.Millisecond), 0},
		"StallTimeout": {func(c *Config, n int) { c.StallTimeout = time.Duration(n) }, int(10 * time.Millisecond), 0},
		"Lease":        {func(c *Config, n int) { c.Lease = time.Duration(n) }, int(500 * time.Millisecond), 0},
		"CloseTimeout": {func(c *Config, n int) { c.CloseTimeout = time.Duration(n) }, int(time.Millisecond), 0},
		"KeepSent":     {func(c *Config, n int) { c.KeepSent = time.Duration(n) }, int(time.Minute), 0},
		"AfterDead":    {func(c *Config, n int) { c.AfterDead = AfterDead(n) }, int(SendSuccessors), int(BlockKey)},
		`Policies["t"].MaxAttempts`: {func(c *Config, n int) {
			c.Policies = map[string]Policy{"t": {MaxAttempts: n}}
		}, 0, 1_000_000},
		`Policies["t"].AfterDead`: {func(c *Config, n int) {
			c.Policies = map[string]Policy{"t": {AfterDead: AfterDead(n)}}
		}, int(SendSuccessors), int(BlockKey)},
	} {
		try := func(value int, valid bool) {
			c := Config{}.withDefaults()
			field.set(&c, value)
			if err := c.validate(); valid != (err == nil) || err != nil && !strings.Contains(err.Error(), name+" is ") {
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
	if err := (Config{Policies: map[string]Policy{"": {}}}).withDefaults().validate(); err == nil {
		t.Error("a policy for the topic without a name is accepted")
	}
}
