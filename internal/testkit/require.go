package testkit

import (
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
)

var skipped atomic.Int64

// Without skips a test that lacks a server or another external dependency. The
// parameter err names the missing dependency. Main counts the skipped tests. With
// REQUIRE_BACKENDS=1, the test fails instead.
func Without(t testing.TB, err error) {
	t.Helper()
	if os.Getenv("REQUIRE_BACKENDS") == "1" {
		t.Fatalf("REQUIRE_BACKENDS=1, but %v", err)
	}
	skipped.Add(1)
	t.Skipf("SKIPPED: %v", err)
}

// leftOut contains, for each test that WithoutOptional skipped, the name of the
// environment variable that would have enabled it.
var leftOut struct {
	sync.Mutex

	variables []string
}

// WithoutOptional skips a test that lacks an optional dependency, even with
// REQUIRE_BACKENDS=1. The parameter err names the missing dependency. The parameter
// variable is the name of the environment variable that contains its path. If this variable is
// set, the test fails instead. Main counts the skipped tests.
func WithoutOptional(t testing.TB, variable string, err error) {
	t.Helper()
	if os.Getenv(variable) != "" {
		t.Fatalf("%s is set, but %v", variable, err)
	}
	leftOut.Lock()
	leftOut.variables = append(leftOut.variables, variable)
	leftOut.Unlock()
	t.Skipf("LEFT OUT: %v: set %s", err, variable)
}

// leftOutTests returns how many tests WithoutOptional skipped, and the environment
// variables that would have enabled them.
func leftOutTests() (n int, variables []string) {
	leftOut.Lock()
	defer leftOut.Unlock()
	return len(leftOut.variables), slices.Compact(slices.Sorted(slices.Values(leftOut.variables)))
}
