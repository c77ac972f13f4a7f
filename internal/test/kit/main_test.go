package kit_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/watermill-once/once/internal/test/kit"
)

func TestMain(m *testing.M) {
	if os.Getenv("TESTKIT_STOCK") != "" {
		kit.Main(m, kit.StockAMQP)
	}
	kit.Main(m)
}

// rerun runs one test of this file in another process, and returns its output.
func rerun(t *testing.T, test string, environment ...string) (output string, err error) {
	t.Helper()
	return run(t, []string{"-test.run=^" + test + "$", "-test.v"}, environment...)
}

func run(t *testing.T, flags []string, environment ...string) (output string, err error) {
	t.Helper()
	command := exec.CommandContext(t.Context(), os.Args[0], flags...)
	command.Env = append(os.Environ(), append([]string{"TESTKIT_AGAIN=1", "REQUIRE_BACKENDS="}, environment...)...)
	combined, err := command.CombinedOutput()
	return string(combined), err
}

func onlyAgain(t *testing.T) {
	t.Helper()
	if os.Getenv("TESTKIT_AGAIN") == "" {
		t.Skip("runs in its own process only")
	}
}

func TestNeedsPostgres(t *testing.T) {
	onlyAgain(t)
	kit.Postgres(t)
}

func TestNeedsRabbit(t *testing.T) {
	onlyAgain(t)
	kit.Rabbit(t)
}

func TestNeedsAnOptionalServer(t *testing.T) {
	onlyAgain(t)
	kit.WithoutOptional(t, "TESTKIT_OPTIONAL", errors.New("the server does not answer"))
}

func TestHasNoRabbitmqctl(t *testing.T) {
	onlyAgain(t)
	broker := kit.Rabbit(t)
	conn, err := amqp.Dial(broker.URL)
	if err != nil {
		t.Fatal(err)
	}
	if err := conn.Close(); err != nil {
		t.Error(err)
	}
	t.Logf("host %q", broker.VHost)
	broker.Ctl(t, "status")
}

func TestIsLong(t *testing.T) {
	onlyAgain(t)
	kit.Long(t)
}

func TestLeavesAGoroutine(t *testing.T) {
	onlyAgain(t)
	go func() { <-context.WithoutCancel(t.Context()).Done() }()
}

// TestLeavesClosersOfAConnection leaks the same two goroutines as watermill-amqp. The
// first goroutine closes a connection, and waits until its notification is received.
// The second goroutine closes the same connection, and waits for the first one.
func TestLeavesClosersOfAConnection(t *testing.T) {
	onlyAgain(t)
	var socket writeFails
	conn, err := amqp.DialConfig(kit.Rabbit(t).URL, amqp.Config{
		Heartbeat: time.Second,
		Dial: func(network, address string) (conn net.Conn, err error) {
			socket.Conn, err = amqp.DefaultDial(time.Minute)(network, address)
			return &socket, err
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	conn.NotifyClose(make(chan *amqp.Error)) // no goroutine receives the notification
	socket.fails.Store(true)
	if err := conn.UpdateSecret("", ""); err == nil {
		t.Error("sent")
	}
	const closes = "amqp091-go.(*Connection).shutdown("
	kit.Eventually(t, time.Minute, "the sender closes", func() bool { return kit.Goroutines(closes, "[chan send") == 1 })
	socket.Close()
	kit.Eventually(t, time.Minute, "the reader waits", func() bool { return kit.Goroutines(closes) == 2 })
}

// writeFails is a connection whose writes fail as soon as its field fails is true.
type writeFails struct {
	net.Conn
	fails atomic.Bool
}

func (c *writeFails) Write(b []byte) (int, error) {
	if c.fails.Load() {
		return 0, errors.New("broken pipe")
	}
	return c.Conn.Write(b)
}

func TestTestWithoutServerIsSkippedAndCounted(t *testing.T) {
	for test, variable := range map[string]string{
		"TestNeedsPostgres": "PG_DSN=postgres://127.0.0.1:1/?sslmode=disable",
		"TestNeedsRabbit":   "AMQP_URL=amqp://127.0.0.1:1/",
	} {
		name, _, _ := strings.Cut(variable, "=")

		output, err := rerun(t, test, variable)
		if err != nil || !strings.Contains(output, "SKIP: "+test) ||
			!strings.Contains(output, name+": dial tcp") || !strings.Contains(output, "SKIPPED 1 test") {
			t.Errorf("%v\n%s", err, output)
		}
		output, err = rerun(t, test, variable, "REQUIRE_BACKENDS=1")
		if err == nil || !strings.Contains(output, "FAIL: "+test) || !strings.Contains(output, name+": dial tcp") {
			t.Errorf("%v\n%s", err, output)
		}
	}
}

func TestTestWithoutOptionalServerIsLeftOutAndCounted(t *testing.T) {
	const test = "TestNeedsAnOptionalServer"
	output, err := rerun(t, test, "TESTKIT_OPTIONAL=", "REQUIRE_BACKENDS=1")
	if err != nil || !strings.Contains(output, "SKIP: "+test) || !strings.Contains(output, "the server does not answer") ||
		!strings.Contains(output, "LEFT OUT 1 test") || !strings.Contains(output, "TESTKIT_OPTIONAL makes them run") {
		t.Errorf("%v\n%s", err, output)
	}
	output, err = rerun(t, test, "TESTKIT_OPTIONAL=there")
	if err == nil || !strings.Contains(output, "TESTKIT_OPTIONAL is set, but the server does not answer") {
		t.Errorf("%v\n%s", err, output)
	}
}

func TestLongTestIsSkippedOnlyWithShort(t *testing.T) {
	long := []string{"-test.run=^TestIsLong$", "-test.v"}
	output, err := run(t, append(long, "-test.short"), "REQUIRE_BACKENDS=1")
	if err != nil || !strings.Contains(output, "SKIP: TestIsLong") ||
		!strings.Contains(output, "runs in make test-all") || strings.Contains(output, "SKIPPED") {
		t.Errorf("%v\n%s", err, output)
	}
	output, err = run(t, long)
	if err != nil || !strings.Contains(output, "PASS: TestIsLong") {
		t.Errorf("%v\n%s", err, output)
	}
}

func TestWithoutRabbitmqctlTheVirtualHostComesFromTheURL(t *testing.T) {
	url := kit.Rabbit(t).URL
	output, err := rerun(t, "TestHasNoRabbitmqctl", "AMQP_URL="+url, "RABBITMQCTL=false")
	if err != nil || !strings.Contains(output, fmt.Sprintf("host %q", path.Base(url))) || !strings.Contains(output, "SKIP: ") {
		t.Errorf("%v\n%s", err, output)
	}
}

func TestGoroutinesThatStockAMQPLeavesAreIgnoredOnRequest(t *testing.T) {
	t.Parallel()
	const test = "TestLeavesClosersOfAConnection"
	if output, err := rerun(t, test); err == nil || !strings.Contains(output, "goroutines are left") {
		t.Errorf("not requested: %v\n%s", err, output)
	}
	if output, err := rerun(t, test, "TESTKIT_STOCK=1"); err != nil {
		t.Errorf("requested: %v\n%s", err, output)
	}
}

func TestLeakedGoroutineFailsThePackage(t *testing.T) {
	t.Parallel()
	output, err := rerun(t, "TestLeavesAGoroutine")
	if err == nil || !strings.Contains(output, "goroutines are left") {
		t.Errorf("%v\n%s", err, output)
	}
}
