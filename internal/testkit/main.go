package testkit

import (
	"fmt"
	"os"
	"testing"

	"go.uber.org/goleak"
)

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
		if err := goleak.Find(options...); err != nil {
			fmt.Fprintln(os.Stderr, "testkit: goroutines are left:", err)
			status = 1
		}
	}
	os.Exit(status)
}
