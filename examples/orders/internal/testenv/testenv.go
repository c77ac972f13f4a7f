// Package testenv gives tests a PostgreSQL database, a RabbitMQ broker, and a
// connection that they can break.
//
// PG_DSN and AMQP_URL name the servers. If the variable of a server is not set, a test
// that needs this server is skipped. With REQUIRE_BACKENDS=1 the test fails instead.
package testenv

import (
	"crypto/rand"
	"os"
	"strings"
	"testing"
	"time"
)

// variable returns the value of an environment variable. If the variable is not set, it
// skips the test, or fails the test with REQUIRE_BACKENDS=1.
func variable(t testing.TB, name string) string {
	t.Helper()
	value := os.Getenv(name)
	if value != "" {
		return value
	}
	if os.Getenv("REQUIRE_BACKENDS") == "1" {
		t.Fatalf("%s is not set", name)
	}
	t.Skipf("%s is not set", name)
	return ""
}

// uniqueName returns a name that no other test uses.
func uniqueName() string { return "orders_test_" + strings.ToLower(rand.Text()) }

// Eventually calls cond again and again until it returns true. It fails the test if this
// does not happen within the given time. The error contains the given description of
// cond.
func Eventually(t testing.TB, within time.Duration, description string, cond func() bool) {
	t.Helper()
	deadline := time.After(within)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for !cond() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("not within %v: %s", within, description)
		}
	}
}
