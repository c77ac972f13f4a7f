package testkit

import (
	"os"
	"sync/atomic"
	"testing"
)

var skipped atomic.Int64

// without ends a test that cannot have its server.
func without(t testing.TB, err error) {
	t.Helper()
	if os.Getenv("REQUIRE_BACKENDS") == "1" {
		t.Fatalf("REQUIRE_BACKENDS=1, but %v", err)
	}
	skipped.Add(1)
	t.Skipf("SKIPPED: %v", err)
}
