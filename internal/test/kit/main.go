package kit

import (
	"context"
	"database/sql"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
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
//	func TestMain(m *testing.M) { kit.Main(m) }
func Main(m *testing.M, options ...goleak.Option) {
	flag.Parse()
	if !testing.Verbose() { // otherwise the logs of all tests hide the errors of the test that fails
		slog.SetDefault(slog.New(slog.DiscardHandler))
	}
	status := m.Run()
	if err := closeShared(); err != nil {
		fmt.Fprintln(os.Stderr, "kit:", err)
		status = max(status, 1)
	}
	if n := skipped.Load(); n > 0 {
		fmt.Fprintf(os.Stderr, "kit: SKIPPED %d test run(s) without their server; REQUIRE_BACKENDS=1 makes them fail\n", n)
	}
	if n, remedies := leftOutTests(); n > 0 {
		fmt.Fprintf(os.Stderr, "kit: LEFT OUT %d test run(s) without an optional dependency; %s makes them run\n",
			n, strings.Join(remedies, ", "))
	}
	if status == 0 {
		err := goleak.Find(options...)
		for waited := time.Now(); err != nil && time.Since(waited) < patience; { // each call of Find waits up to half a second
			err = goleak.Find(options...)
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, "kit: goroutines are left:", err)
			status = 1
		}
	}
	os.Exit(status)
}

var skipped atomic.Int64

// Without skips a test that lacks a server or another external dependency.
// err names the missing dependency. Main counts the skipped tests. With
// REQUIRE_BACKENDS=1, the test fails instead.
func Without(t testing.TB, err error) {
	t.Helper()
	if os.Getenv("REQUIRE_BACKENDS") == "1" {
		t.Fatalf("REQUIRE_BACKENDS=1, but %v", err)
	}
	skipped.Add(1)
	t.Skipf("SKIPPED: %v", err)
}

// leftOut contains, for each test that lacked an optional dependency, the environment
// variable or the script that would have enabled it.
var leftOut struct {
	sync.Mutex

	remedies []string
}

// WithoutOptional skips a test that lacks an optional dependency, even with
// REQUIRE_BACKENDS=1. err names the missing dependency.
// variable is the name of the environment variable that contains its path. If this variable is
// set, the test fails instead. Main counts the skipped tests.
func WithoutOptional(t testing.TB, variable string, err error) {
	t.Helper()
	if os.Getenv(variable) != "" {
		t.Fatalf("%s is set, but %v", variable, err)
	}
	leaveOut(t, variable, fmt.Errorf("%w: set %s", err, variable))
}

func leaveOut(t testing.TB, remedy string, err error) {
	t.Helper()
	leftOut.Lock()
	leftOut.remedies = append(leftOut.remedies, remedy)
	leftOut.Unlock()
	t.Skipf("LEFT OUT: %v", err)
}

func leftOutTests() (n int, remedies []string) {
	leftOut.Lock()
	defer leftOut.Unlock()
	return len(leftOut.remedies), slices.Compact(slices.Sorted(slices.Values(leftOut.remedies)))
}

// Long skips a test under go test -short, which make test uses. CONTRIBUTING.md says
// which tests call it. In a matrix, call Long in all subtests except one, so that make
// test runs one case. Main does not count these tests as skipped, because no server is
// missing.
func Long(t testing.TB) {
	t.Helper()
	if testing.Short() {
		noteShortened(topLevel(t.Name()))
		t.Skip("runs in make test-all")
	}
}

// Sized returns small under go test -short, and otherwise full. It is for the sizes of a
// test that shows the same with fewer rows or rounds, only with less certainty. Call it
// in the goroutine of the test.
func Sized(small, full int) int {
	if testing.Short() {
		noteShortened(running())
		return small
	}
	return full
}

// Shortened is an environment variable with the name of a file. Under go test -short,
// [Long] and [Sized] append to this file the package and the name of their test.
// After make test RACE=1, make test-all can repeat only these tests: the others would do the same again.
const Shortened = "ONCE_TEST_SHORTENED"

func noteShortened(test string) {
	name := os.Getenv(Shortened)
	if name == "" {
		return
	}
	build, _ := debug.ReadBuildInfo()
	err := appendLine(name, strings.TrimSuffix(build.Path, ".test")+" "+test)
	if err != nil {
		panic(fmt.Sprintf("kit: write the file of %s: %v", Shortened, err))
	}
}

// appendLine appends a line with one write, because other processes append to the file
// at the same time.
func appendLine(name, line string) error {
	file, err := os.OpenFile(name, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o666)
	if err != nil {
		return err
	}
	_, err = file.WriteString(line + "\n")
	return errors.Join(err, file.Close())
}

func topLevel(test string) string {
	name, _, _ := strings.Cut(test, "/")
	return name
}

// running returns the name of the test that runs in this goroutine, for example
// TestOutbox in the function once.TestOutbox.func1.
func running() string {
	callers := make([]uintptr, 100)
	frames := runtime.CallersFrames(callers[:runtime.Callers(2, callers)])
	for {
		frame, more := frames.Next()
		for part := range strings.SplitSeq(frame.Function[strings.LastIndexByte(frame.Function, '/')+1:], ".") {
			if strings.HasPrefix(part, "Test") || strings.HasPrefix(part, "Fuzz") {
				return part
			}
		}
		if !more {
			panic("kit: Sized was not called in the goroutine of a test")
		}
	}
}

// Ignore creates a trigger that makes the database ignore an operation (INSERT, UPDATE or
// DELETE) on those rows of a table for which the condition when is true, for example
// "OLD.message_id = 'm'". The statement reports no error. The returned function removes
// the trigger.
func Ignore(t testing.TB, db *sql.DB, dialect, operation, table, when string) (remove func()) {
	t.Helper()
	name := "ignore_" + operation + "_" + table
	drop := "DROP TRIGGER " + name
	statements := []string{
		fmt.Sprintf("CREATE TRIGGER %s BEFORE %s ON %s WHEN (%s) BEGIN SELECT RAISE(IGNORE); END", name, operation, table, when),
	}
	if dialect == "postgres" {
		drop += " ON " + table
		statements = []string{
			"CREATE OR REPLACE FUNCTION ignore() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'",
			fmt.Sprintf("CREATE TRIGGER %s BEFORE %s ON %s FOR EACH ROW WHEN (%s) EXECUTE FUNCTION ignore()", name, operation, table, when),
		}
	}
	for _, statement := range statements {
		if _, err := db.ExecContext(t.Context(), statement); err != nil {
			t.Fatalf("%s: %v", statement, err)
		}
	}
	return func() {
		t.Helper()
		if _, err := db.ExecContext(context.WithoutCancel(t.Context()), drop); err != nil {
			t.Fatal(err)
		}
	}
}
