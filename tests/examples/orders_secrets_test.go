package examples

import (
	"bytes"
	"errors"
	"net/url"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/watermill-once/once/internal/test/kit"
)

const secretPassword = "canary-p@ss/word"

// The example writes no password at any log level, even if something fails.
func TestTrap60_TheExampleWritesNoPasswords(t *testing.T) {
	kit.Long(t) // it builds and starts the example
	t.Parallel()
	binary := filepath.Join(t.TempDir(), "orders")
	build := exec.CommandContext(t.Context(), "go", "build", "-ldflags", "-s -w", "-o", binary, "./orders")
	build.Dir = source
	if output, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, output)
	}
	broker := kit.Rabbit(t)
	user := broker.Name("reader")
	defer broker.AddUser(t, user, secretPassword)()
	broker.Permit(t, user, ".*", ".*", ".*")

	dsn, amqp := withPassword(t, kit.Postgres(t).DSN, ""), withPassword(t, broker.URL, user)
	status, output := runOrders(t, binary, "-db", dsn, "-amqp", amqp, "-namespace", broker.Name("orders"), "-orders", "20", "-faults")
	if status != 0 || strings.Count(output, "\n") < 100 {
		t.Errorf("status %d: %s", status, output)
	}
	hasNoSecrets(t, output)

	for _, args := range [][]string{
		{"-db", dsn + "&lock_timeout=never"},
		{"-db", strings.Replace(dsn, "@", "@nowhere.invalid.", 1)},
		{"-db", "host=127.0.0.1 port=1 user=u password='" + secretPassword + "' dbname=d sslmode=disable"},
		{"-db", "host=127.0.0.1 port=one user=u password='" + secretPassword + "'"},
		{"-db", dsn, "-amqp", amqp + "-elsewhere"},
		{"-db", dsn, "-amqp", strings.Replace(amqp, user, "nobody", 1)},
	} {
		status, output := runOrders(t, binary, args...)
		if status == 0 || output == "" {
			t.Errorf("%q: status %d: %s", args, status, output)
		}
		hasNoSecrets(t, output)
	}
}

// runOrders runs the example until it has nothing more to do. It returns the exit status and the
// output of the example.
func runOrders(t *testing.T, binary string, args ...string) (status int, output string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), binary, append(args, "-addr", "127.0.0.1:0", "-exit", "-json", "-v", "trace")...)
	var written bytes.Buffer
	cmd.Stdout, cmd.Stderr = &written, &written
	err := cmd.Run()
	if failed, ok := errors.AsType[*exec.ExitError](err); ok {
		return failed.ExitCode(), written.String()
	}
	kit.OK(t, err)
	return 0, written.String()
}

// withPassword returns an address with the password, and with a user if one is
// given.
func withPassword(t *testing.T, address, user string) string {
	t.Helper()
	parsed, err := url.Parse(address)
	if err != nil {
		t.Fatal("the address is not a URL")
	}
	if user == "" {
		user = parsed.User.Username()
	}
	parsed.User = url.UserPassword(user, secretPassword)
	return parsed.String()
}

func hasNoSecrets(t *testing.T, text string) {
	t.Helper()
	for line := range strings.Lines(text) {
		if strings.Contains(line, "canary") {
			t.Errorf("the password is written: %.400s", line)
		}
	}
}
