package testkit

import (
	"fmt"
	"os"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// patience is how long goroutines may take to end, on a busy machine.
const patience = 10 * time.Second

// StockAMQP ignores a goroutine that watermill-amqp leaks if the broker and the client
// close a connection at the same time: watermill-amqp does not receive the notification
// any more, and the client waits for ever. Connections of this module have a buffer for
// the notification.
var StockAMQP = goleak.IgnoreTopFunction("github.com/rabbitmq/amqp091-go.(*Connection).shutdown.func1")

// Main runs the tests of a package, stops the servers that were started for them, and
// fails if a goroutine is leaked. It does not return:
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
		for waited := time.Now(); err != nil && time.Since(waited) < patience; { // each Find waits up to half a second
			err = goleak.Find(options...)
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, "testkit: goroutines are left:", err)
			status = 1
		}
	}
	os.Exit(status)
}
