package testkit

import (
	"flag"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// patience is how long Main waits for goroutines to end. It is long, because the
// machine may be busy.
const patience = 10 * time.Second

// StockAMQP makes Main ignore the goroutines that watermill-amqp leaks if the broker
// and the client close a connection at the same time. At that time watermill-amqp no
// longer receives the client's notification, so the goroutine that closes the
// connection waits forever. Every other goroutine that closes the same connection waits
// for the first one. The connections of this module do not leak such goroutines,
// because they have a buffer for the notification.
var StockAMQP = goleak.IgnoreAnyFunction("github.com/rabbitmq/amqp091-go.(*Connection).shutdown")

// Main runs the tests of a package, stops the servers that were started for them, and
// fails if a goroutine was leaked. Without -v it discards the log lines of
// slog.Default. It does not return. Use it like this:
//
//	func TestMain(m *testing.M) { testkit.Main(m) }
func Main(m *testing.M, options ...goleak.Option) {
	flag.Parse()
	if !testing.Verbose() { // otherwise the logs of all tests hide the errors of the test that fails
		slog.SetDefault(slog.New(slog.DiscardHandler))
	}
	status := m.Run()
	if err := closeShared(); err != nil {
		fmt.Fprintln(os.Stderr, "testkit:", err)
		status = max(status, 1)
	}
	if n := skipped.Load(); n > 0 {
		fmt.Fprintf(os.Stderr, "testkit: SKIPPED %d test run(s) without their server; REQUIRE_BACKENDS=1 makes them fail\n", n)
	}
	if n, variables := leftOutTests(); n > 0 {
		fmt.Fprintf(os.Stderr, "testkit: LEFT OUT %d test run(s) without an optional dependency; %s makes them run\n",
			n, strings.Join(variables, ", "))
	}
	if status == 0 {
		err := goleak.Find(options...)
		for waited := time.Now(); err != nil && time.Since(waited) < patience; { // each call of Find waits up to half a second
			err = goleak.Find(options...)
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, "testkit: goroutines are left:", err)
			status = 1
		}
	}
	os.Exit(status)
}
