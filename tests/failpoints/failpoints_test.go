package failpoints

import (
	"slices"
	"strings"
	"testing"

	"github.com/watermill-once/once/internal/failpoint"
	"github.com/watermill-once/once/internal/testkit"
)

// alike contains scenarios in which the first point is reached in nearly the same way as in
// another scenario. They do not run with -short.
var alike = []string{
	"failing, durable", "batch with one that fails", "accepted after all", "dead, discarded", "dead, its key released",
	"backing off, retried", "crashing, durable, with key order", "discarded", "edited", "stopped", "parked, run now", "parked, discarded",
}

// A process is killed at each failpoint, and another process continues. Every committed
// message has its effect once. With -short, a process is killed at the first point of each
// scenario, except of those that differ little from another one.
func TestKilledAt(t *testing.T) {
	t.Parallel()
	program, broker := testkit.Program(t, "failpoints"), testkit.Rabbit(t)
	for _, s := range slices.Concat(scenarios, operatorScenarios) {
		for i, point := range s.points {
			t.Run(s.name+"/"+point, func(t *testing.T) {
				t.Parallel()
				if i > 0 || slices.Contains(alike, s.name) {
					testkit.Long(t)
				}
				w := newWorld(t, program, s, broker)
				w.prepare()
				begin(t, program, w.life, point).killed(t)
				if s.after != nil {
					s.after(&w.life)
				}
				w.finish()
				w.audit()
			})
		}
	}
}

func TestEveryPointHasAScenario(t *testing.T) {
	reached, names := map[string]bool{}, map[string]bool{}
	for _, s := range slices.Concat(scenarios, operatorScenarios) {
		names[s.name] = true
		for _, point := range s.points {
			name, _, _ := strings.Cut(point, ":")
			reached[name] = true
			if !slices.Contains(failpoint.Points, name) {
				t.Errorf("%s: there is no failpoint %s", s.name, name)
			}
		}
	}
	for _, name := range alike {
		if !names[name] {
			t.Errorf("there is no scenario %s", name)
		}
	}
	for _, name := range failpoint.Points {
		if !reached[name] {
			t.Errorf("no process is killed at %s", name)
		}
	}
}
