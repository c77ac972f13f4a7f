package main

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/watermill-once/once/internal/test/kit"
)

// With REQUIRE_BACKENDS=1 a test fails if its broker is missing. try ignores this variable, because
// such a failure would not show that the guard is missing.
func TestMissingServerIsNotReportedAsRed(t *testing.T) {
	kit.Long(t)
	t.Setenv("REQUIRE_BACKENDS", "1")
	t.Setenv("AMQP_URL", "amqp://127.0.0.1:1/")
	root, err := findRoot()
	kit.OK(t, err)
	all, err := load(root)
	kit.OK(t, err)
	g := all[slices.IndexFunc(all, func(g guard) bool { return g.trap == 42 })]
	verdict, output, err := g.try(t.Context(), root, time.Minute)
	if err != nil || verdict != left || !strings.Contains(output, "SKIPPED: ") {
		t.Errorf("%v, %s\n%s", err, verdict, output)
	}
}
