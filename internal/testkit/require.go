package testkit

import (
	"os"
	"sync/atomic"
	"testing"
)

var skipped atomic.Int64

// Without skips a test that lacks a server or another external dependency; err says which.
// Main counts the skipped tests. With REQUIRE_BACKENDS=1 the test fails.
func Without(t testing.TB, err error) {
	t.Helper()
	if os.Getenv("REQUIRE_BACKENDS") == "1" {
		t.Fatalf("REQUIRE_BACKENDS=1, but %v", err)
	}
	skipped.Add(1)
	t.Skipf("SKIPPED: %v", err)
}
