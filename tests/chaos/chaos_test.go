package main

import (
	"errors"
	"math/rand/v2"
	"os"
	"testing"

	"github.com/watermill-once/once/internal/servers"
	"github.com/watermill-once/once/internal/testkit"
)

func TestMain(m *testing.M) {
	if told := os.Getenv(environment); told != "" {
		os.Exit(play(told))
	}
	testkit.Main(m)
}

// chaos runs the command with some kinds of faults.
func chaos(t *testing.T, o options, kinds string) *report {
	t.Helper()
	var err error
	if o.faults, err = choose(kinds); err != nil {
		t.Fatal(err)
	}
	r, err := run(t.Context(), o, t.Output())
	if errors.Is(err, servers.ErrNotInstalled) {
		testkit.Without(t, err)
	}
	if err != nil {
		t.Fatal(err)
	}
	r.print(t.Output())
	return r
}

// A short run, with what takes no long time: make chaos has all of it.
func TestNothingIsLostAndNothingTakesEffectTwice(t *testing.T) {
	const kinds = "writer-kill,forwarder-kill,consumer-kill,backend-kill,memory-alarm,queue-full,pg-reset,amqp-half-open," +
		"cut-commit-writer,cut-commit-consumer,cut-before-confirm,cut-before-ack,duplicates,requeued,oversized-body," +
		"handler-times-out,replay"
	if r := chaos(t, options{seed: rand.Uint64(), messages: 1500, bites: 1, waiting: 300}, kinds); !r.passed() {
		t.Error("see above")
	}
}

// A run that could find nothing would prove nothing: each of these breaks a
// part in the way that somebody may well have written it.
func TestWhatIsBrokenIsFound(t *testing.T) {
	t.Run("doubled, phantoms, inversions", func(t *testing.T) {
		o := options{seed: 1, messages: 500, bites: 1, waiting: 300, plant: plantInbox + "," + plantOrder + "," + plantOutbox}
		r := chaos(t, o, "duplicates,writer-kill")
		if r.passed() || r.Doubled == 0 || r.Phantoms == 0 || r.Inversions == 0 {
			t.Errorf("not found: %+v", r.totals)
		}
	})
	t.Run("lost", func(t *testing.T) {
		r := chaos(t, options{seed: 1, messages: 500, bites: 1, waiting: 300, plant: plantDelete}, "amqp-refused")
		if r.passed() || r.Lost == 0 {
			t.Errorf("not found: %+v", r.totals)
		}
	})
}
