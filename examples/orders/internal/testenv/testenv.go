// Package testenv gives tests PostgreSQL, RabbitMQ and a breakable connection.
//
// PG_DSN and AMQP_URL name the servers. A test whose server is not set is
// skipped, or fails with REQUIRE_BACKENDS=1.
package testenv

import (
	"crypto/rand"
	"os"
	"strings"
	"testing"
	"time"
)

// variable returns the environment variable, or skips the test without it.
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

// uniqueName returns a name that no other test has.
func uniqueName() string { return "orders_test_" + strings.ToLower(rand.Text()) }

// Eventually polls cond until it returns true. It fails the test, with what it
// waited for, if cond has not returned true within the time.
func Eventually(t testing.TB, within time.Duration, what string, cond func() bool) {
	t.Helper()
	deadline := time.After(within)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for !cond() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("not within %v: %s", within, what)
		}
	}
}
