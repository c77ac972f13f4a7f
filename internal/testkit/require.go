package testkit

import (
	"os"
	"sync/atomic"
	"testing"
)

var skipped atomic.Int64

// Without skips a test that cannot have what it needs from outside, such as a
// server: err says what. It is counted, and with REQUIRE_BACKENDS=1 it fails.
func Without(t testing.TB, err error) {
	t.Helper()
	if os.Getenv("REQUIRE_BACKENDS") == "1" {
		t.Fatalf("REQUIRE_BACKENDS=1, but %v", err)
	}
	skipped.Add(1)
	t.Skipf("SKIPPED: %v", err)
}
