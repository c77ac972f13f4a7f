package failpoints

import (
	"slices"
	"strings"
	"testing"

	"github.com/watermill-once/once/internal/failpoint"
	"github.com/watermill-once/once/internal/testkit"
)

// A process is killed at each failpoint, and another process continues. Every committed
// message has its effect once.
func TestKilledAt(t *testing.T) {
	t.Parallel()
	program, broker := testkit.Program(t, "failpoints"), testkit.Rabbit(t)
	for _, s := range slices.Concat(scenarios, operatorScenarios) {
		for i, point := range s.points {
			t.Run(s.name+"/"+point, func(t *testing.T) {
				t.Parallel()
				if i > 0 {
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
	reached := map[string]bool{}
	for _, s := range slices.Concat(scenarios, operatorScenarios) {
		for _, point := range s.points {
			name, _, _ := strings.Cut(point, ":")
			reached[name] = true
			if !slices.Contains(failpoint.Points, name) {
				t.Errorf("%s: there is no failpoint %s", s.name, name)
			}
		}
	}
	for _, name := range failpoint.Points {
		if !reached[name] {
			t.Errorf("no process is killed at %s", name)
		}
	}
}
