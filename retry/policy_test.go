package retry

import (
	"math"
	"strings"
	"testing"
	"time"

	"github.com/watermill-once/once/schema"
)

func TestZeroPolicyHasDocumentedDelays(t *testing.T) {
	p := Policy{}.withDefaults()
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
	p := Policy{Immediate: -1, Delayed: -1, Jitter: -1}.withDefaults()
	if p.Immediate != 0 || p.Delayed != 0 || p.Jitter != 0 {
		t.Fatalf("%+v", p)
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
