package main

import (
	"errors"
	"math/rand/v2"
	"os"
	"strings"
	"testing"

	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/internal/test/servers"
)

func TestMain(m *testing.M) {
	if told := os.Getenv(environment); told != "" {
		os.Exit(play(told))
	}
	kit.Main(m)
}

// chaos runs the command with the given kinds of faults, separated by commas.
func chaos(t *testing.T, o options, kinds string) *report {
	t.Helper()
	var err error
	o.faults, err = choose(faults(), kinds)
	kit.OK(t, err)
	r, err := run(t.Context(), o, t.Output())
	if errors.Is(err, servers.ErrNotInstalled) {
		kit.Without(t, err)
	}
	kit.OK(t, err)
	r.print(t.Output())
	return r
}

// A short run with the quick faults finds no lost message, and no message that took effect twice.
// `make chaos` runs all faults.
func TestNothingIsLostAndNothingTakesEffectTwice(t *testing.T) {
	kit.Long(t)
	t.Parallel()
	o := options{seed: rand.Uint64(), messages: 1500, bites: 1, waiting: 300}
	const kinds = "writer-kill,forwarder-kill,consumer-kill,cut-commit-writer,cut-commit-consumer,cut-before-confirm,cut-before-ack," +
		"duplicates,backend-kill,memory-alarm,queue-full,pg-reset,amqp-half-open,requeued,oversized-body,handler-times-out,replay"
	if r := chaos(t, o, kinds); !r.passed() {
		t.Error("the run failed, see the report above")
	}
}

// Each case breaks a part on purpose, with a mistake that a service could contain. The run must
// find the damage; otherwise a run that finds nothing would prove nothing. The processes run
// without the race detector.
func TestPlantedMistakesAreFound(t *testing.T) {
	kit.Long(t)
	t.Parallel()
	program := kit.Program(t, "")
	t.Run("doubled in both services, phantoms, inversions", func(t *testing.T) {
		t.Parallel()
		o := options{seed: 1, messages: 500, bites: 1, waiting: 300, program: program, plant: plantInbox + "," + plantOrder + "," + plantOutbox}
		r := chaos(t, o, "duplicates,writer-kill,two-services")
		if r.passed() || r.Doubled == 0 || r.Phantoms == 0 || r.Inversions == 0 ||
			!strings.Contains(strings.Join(r.Notes, "\n"), "handled twice by the second service") {
			t.Errorf("the damage was not found: %+v, %q", r.totals, r.Notes)
		}
	})
	t.Run("order of commits, mails", func(t *testing.T) {
		t.Parallel()
		o := options{seed: 1, messages: 500, bites: 1, waiting: 300, program: program, plant: plantKeyLock + "," + plantIntents}
		r := chaos(t, o, "publish-first,intents")
		if r.passed() || r.Inversions == 0 || r.Doubled == 0 {
			t.Errorf("the damage was not found: %+v", r.totals)
		}
	})
	t.Run("pauses", func(t *testing.T) {
		t.Parallel()
		r := chaos(t, options{seed: 1, messages: 500, bites: 1, waiting: 300, program: program, plant: plantPauses}, "pauses")
		if r.passed() || !strings.Contains(strings.Join(r.Faults, "\n"), "were sent while they were paused") {
			t.Errorf("the damage was not found: %q", r.Faults)
		}
	})
	t.Run("lost", func(t *testing.T) { // not with the others, because a lost message also looks like an inversion
		t.Parallel()
		r := chaos(t, options{seed: 1, messages: 500, bites: 1, waiting: 300, program: program, plant: plantDelete}, "amqp-refused")
		if r.passed() || r.Lost == 0 {
			t.Errorf("the damage was not found: %+v", r.totals)
		}
	})
}
