package forwarder

import (
	"errors"
	"math"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/forwarder/internal/dispatch"
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
		Lease: 15 * time.Second, MaxAttempts: 20, AfterDead: SendSuccessors, CloseTimeout: 5 * time.Second,
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
		}, 0, int(BlockKey)},
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

// The jitter of the longest possible pause must not overflow. Otherwise the pause would
// become negative and end immediately.
func TestJitterOfTheLongest(t *testing.T) {
	for _, d := range []time.Duration{0, time.Second, math.MaxInt64 / 2, math.MaxInt64} {
		for range 100 {
			if got := jitter(d); got < d/4 {
				t.Fatalf("%v became %v", d, got)
			}
		}
	}
}

// README.md and Config.Backoff promise that a refused message becomes a dead letter after
// about an hour by default.
func TestDefaultAttemptsTakeAboutAnHour(t *testing.T) {
	config := Config{}.withDefaults()
	var total time.Duration
	for attempt := 1; attempt < config.MaxAttempts; attempt++ {
		total += config.Backoff(attempt)
	}
	if total < 50*time.Minute || total > 70*time.Minute {
		t.Errorf("%d attempts take %v", config.MaxAttempts, total)
	}
}

// Without providers, publishing a message must allocate nothing for metrics and traces,
// even if the message has a sampled trace.
func TestWithoutProvidersNothingIsAllocated(t *testing.T) {
	i := newInstruments(Config{})
	if i.tracer.Enabled() {
		t.Fatal("i.tracer.Enabled returned true")
	}
	i.start()
	const traceparent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	msg := message.NewMessage("1", nil)
	msg.Metadata.Set("traceparent", traceparent)
	m := &dispatch.Message{Topic: "t"}
	r := result{order: order{Publish: dispatch.Publish{Message: m}, at: time.Now()}}
	batch := &dispatch.Settlement{
		Confirmed: []*dispatch.Message{m},
		Charges:   []dispatch.Charge{{Message: m, Cause: dispatch.Unknown}},
		Deaths:    []dispatch.Death{{Message: m, Exhausted: true}},
	}
	settled := dispatch.Settled{Confirmed: true, Charges: true, Deaths: 1}
	got := testing.AllocsPerRun(100, func() {
		r.span = (&sender{}).begin(m, msg) // as the sender calls it if the tracer is not enabled
		i.beginRound()
		i.published(r, Confirmed, time.Now())
		i.endRound()
		i.settled(batch, settled)
		i.stall("t")
	})
	if got != 0 {
		t.Fatalf("testing.AllocsPerRun is %v, want 0", got)
	}
	if got := msg.Metadata.Get("traceparent"); got != traceparent {
		t.Fatalf(`msg.Metadata.Get("traceparent") is %q, want %q`, got, traceparent)
	}
}

// If Classify returns a value that is not an Outcome, it must be counted as
// Unavailable, without a panic.
func TestAnOutcomeThatThereIsNotIsCounted(t *testing.T) {
	i := newInstruments(Config{})
	r := result{order: order{Publish: dispatch.Publish{Message: &dispatch.Message{}}}, err: errors.New("failed")}
	i.published(r, Outcome(99), time.Now())
	if i.outcomes.counts[Unavailable] != 1 {
		t.Fatalf("i.outcomes.counts[Unavailable] is %d, want 1", i.outcomes.counts[Unavailable])
	}
	if got := Outcome(99).String(); got != "invalid" {
		t.Fatalf(`Outcome(99) is %q, want "invalid"`, got)
	}
}

func TestZeroFieldsOfATopicsPolicyAreThoseOfConfig(t *testing.T) {
	c := Config{
		MaxAttempts: 7, AfterDead: BlockKey, Backoff: func(int) time.Duration { return time.Hour },
		Policies: map[string]Policy{"empty": {}, "mails": {AfterDead: SendSuccessors}},
	}.withDefaults()
	for topic, want := range map[string]AfterDead{"empty": BlockKey, "mails": SendSuccessors, "other": BlockKey} {
		if got := c.policy(topic); got.MaxAttempts != 7 || got.AfterDead != want || got.Backoff(1) != time.Hour {
			t.Errorf("the policy of %s is %+v, want 7 attempts and %d", topic, got, want)
		}
	}
}
