package testkit

import (
	"fmt"
	"os"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// patience is what goroutines are given to end, on a machine that has other
// things to do.
const patience = 10 * time.Second

// StockAMQP is left by watermill-amqp where the broker closes a connection that
// is just being closed: it listens no more, and the client waits for it for ever.
// A connection of ours has room for what it is told.
var StockAMQP = goleak.IgnoreTopFunction("github.com/rabbitmq/amqp091-go.(*Connection).shutdown.func1")

// Main runs the tests of a package, stops the servers that were started for
// them, and fails if a goroutine is left. It does not return:
//
//	func TestMain(m *testing.M) { testkit.Main(m) }
func Main(m *testing.M, options ...goleak.Option) {
	status := m.Run()
	if err := closeShared(); err != nil {
		fmt.Fprintln(os.Stderr, "testkit:", err)
		status = max(status, 1)
	}
	if n := skipped.Load(); n > 0 {
		fmt.Fprintf(os.Stderr, "testkit: SKIPPED %d test run(s) without their server; REQUIRE_BACKENDS=1 makes them fail\n", n)
	}
	if status == 0 {
		err := goleak.Find(options...)
		for waited := time.Now(); err != nil && time.Since(waited) < patience; { // Find itself waits for half a second
			err = goleak.Find(options...)
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, "testkit: goroutines are left:", err)
			status = 1
		}
	}
	os.Exit(status)
}
