package testkit_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path"
	"strings"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/watermill-once/once/internal/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// again runs one of the tests of this file in its own process.
func again(t *testing.T, test string, environment ...string) (output string, err error) {
	t.Helper()
	command := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+test+"$", "-test.v")
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
	testkit.Postgres(t)
}

func TestNeedsRabbit(t *testing.T) {
	onlyAgain(t)
	testkit.Rabbit(t)
}

func TestHasNoRabbitmqctl(t *testing.T) {
	onlyAgain(t)
	broker := testkit.Rabbit(t)
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

func TestLeavesAGoroutine(t *testing.T) {
	onlyAgain(t)
	go func() { <-context.WithoutCancel(t.Context()).Done() }()
}

func TestTestWithoutServerIsSkippedAndCounted(t *testing.T) {
	for test, variable := range map[string]string{
		"TestNeedsPostgres": "PG_DSN=postgres://127.0.0.1:1/?sslmode=disable",
		"TestNeedsRabbit":   "AMQP_URL=amqp://127.0.0.1:1/",
	} {
		name, _, _ := strings.Cut(variable, "=")

		output, err := again(t, test, variable)
		if err != nil || !strings.Contains(output, "SKIP: "+test) ||
			!strings.Contains(output, name+": dial tcp") || !strings.Contains(output, "SKIPPED 1 test") {
			t.Errorf("%v\n%s", err, output)
		}
		output, err = again(t, test, variable, "REQUIRE_BACKENDS=1")
		if err == nil || !strings.Contains(output, "FAIL: "+test) || !strings.Contains(output, name+": dial tcp") {
			t.Errorf("%v\n%s", err, output)
		}
	}
}

func TestWithoutRabbitmqctlTheVirtualHostComesFromTheURL(t *testing.T) {
	url := testkit.Rabbit(t).URL
	output, err := again(t, "TestHasNoRabbitmqctl", "AMQP_URL="+url, "RABBITMQCTL=false")
	if err != nil || !strings.Contains(output, fmt.Sprintf("host %q", path.Base(url))) || !strings.Contains(output, "SKIP: ") {
		t.Errorf("%v\n%s", err, output)
	}
}

func TestLeakedGoroutineFailsThePackage(t *testing.T) {
	output, err := again(t, "TestLeavesAGoroutine")
	if err == nil || !strings.Contains(output, "goroutines are left") {
		t.Errorf("%v\n%s", err, output)
	}
}
