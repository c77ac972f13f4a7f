package main

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/watermill-once/once/internal/test/kit"
)

func TestMain(m *testing.M) { kit.Main(m) }

// withServers sets PG_DSN and AMQP_URL to running servers, so that with-servers starts
// none.
func withServers(t *testing.T) kit.Database {
	t.Helper()
	db, broker := kit.Postgres(t), kit.Rabbit(t)
	t.Setenv("PG_DSN", db.DSN)
	t.Setenv("AMQP_URL", broker.URL)
	return db
}

func TestRunPassesOnArgumentsServersAndStatus(t *testing.T) {
	db := withServers(t)
	seen := filepath.Join(t.TempDir(), "seen")
	var said bytes.Buffer
	status := run([]string{"--", "sh", "-c", `echo "$PG_DSN $AMQP_URL $1" > "$0"; exit 7`, seen, "-private"}, &said)
	if status != 7 {
		t.Errorf("the status is %d, want 7", status)
	}
	content, err := os.ReadFile(seen)
	want := db.DSN + " " + os.Getenv("AMQP_URL") + " -private\n"
	if err != nil || string(content) != want {
		t.Errorf("the command saw %q (%v), want %q", content, err, want)
	}
	if !regexp.MustCompile(`with-servers: \d+ s of processor time`).MatchString(said.String()) {
		t.Errorf("the output does not say the processor time: %q", said.String())
	}
	if !strings.Contains(said.String(), "PostgreSQL: ") || !strings.Contains(said.String(), "RabbitMQ: ") {
		t.Errorf("the output is %q", said.String())
	}
}

func TestTemporaryFilesAreInMemoryOnRequest(t *testing.T) {
	withServers(t)
	dir := t.TempDir()
	for i, c := range []struct {
		own  string // TMPDIR
		args []string
		want string
	}{
		{"", nil, ""},
		{"", []string{"-memory"}, memory()},
		{"/own", []string{"-memory"}, "/own"},
	} {
		t.Setenv("TMPDIR", c.own)
		seen := filepath.Join(dir, fmt.Sprint(i))
		if status := run(append(c.args, "sh", "-c", `printf %s "$TMPDIR" > "$0"`, seen), io.Discard); status != 0 {
			t.Errorf("the status is %d", status)
		}
		if got, err := os.ReadFile(seen); err != nil || string(got) != c.want {
			t.Errorf("TMPDIR %q, %v: the command has TMPDIR %q (%v), want %q", c.own, c.args, got, err, c.want)
		}
	}
}

func TestRunReportsWhatWentWrong(t *testing.T) {
	withServers(t)
	t.Run("killed", func(t *testing.T) {
		if status := run([]string{"sh", "-c", "kill -KILL $$"}, &bytes.Buffer{}); status != 128+9 {
			t.Errorf("the status is %d, want 137", status)
		}
	})
	for name, test := range map[string]struct {
		args   []string
		amqp   string
		status int
		says   string
	}{
		"no command":      {nil, "", statusUsage, "no command"},
		"unknown flag":    {[]string{"-privat", "true"}, "", statusUsage, "-privat"},
		"help":            {[]string{"-help"}, "", 0, "with-servers runs a command"},
		"unknown command": {[]string{"no-such-command"}, "", statusNoStart, "no-such-command"},
		"no broker":       {[]string{"true"}, "amqp://me:secret@127.0.0.1:1/", statusServers, "AMQP_URL"},
	} {
		t.Run(name, func(t *testing.T) {
			if test.amqp != "" {
				t.Setenv("AMQP_URL", test.amqp)
			}
			var said bytes.Buffer
			if status := run(test.args, &said); status != test.status {
				t.Errorf("the status is %d, want %d", status, test.status)
			}
			if !strings.Contains(said.String(), test.says) || strings.Contains(said.String(), "secret") {
				t.Errorf("the output is %q, want %q", said.String(), test.says)
			}
		})
	}
}

func TestRunForwardsSignals(t *testing.T) {
	withServers(t)
	for _, signal := range []syscall.Signal{syscall.SIGTERM, syscall.SIGHUP} {
		t.Run(signal.String(), func(t *testing.T) {
			ready := filepath.Join(t.TempDir(), "ready")
			ended := make(chan int, 1)
			go func() {
				ended <- run([]string{"sh", "-c", `trap "exit 3" TERM HUP; echo > "$0"; while :; do sleep 0.01; done`, ready}, &bytes.Buffer{})
			}()
			kit.Eventually(t, time.Minute, "the command runs", func() bool {
				_, err := os.Stat(ready)
				return err == nil
			})
			kit.OK(t, syscall.Kill(os.Getpid(), signal))
			if status := <-ended; status != 3 {
				t.Errorf("the status is %d, want that of the command's handler", status)
			}
		})
	}
}

func TestRunStopsWhatItStarted(t *testing.T) {
	kit.Long(t)
	kit.PrivatePostgres(t) // skips the test if PostgreSQL is missing
	dir := t.TempDir()
	seen := filepath.Join(dir, "seen")
	var said bytes.Buffer
	script := `echo "$RABBITMQCTL" > "$0"; "$RABBITMQCTL" --quiet list_vhosts >> "$0"`
	if status := run([]string{"-private", "sh", "-c", script, seen}, &said); status != 0 {
		t.Fatalf("the status is %d: %s", status, said.String())
	}
	content := kit.ReadFile(t, seen)
	ctl, vhosts, _ := strings.Cut(string(content), "\n")
	if !strings.Contains(vhosts, "/") {
		t.Errorf("the virtual hosts are %q", vhosts)
	}
	if _, err := os.Stat(ctl); !os.IsNotExist(err) {
		t.Errorf("the directory of the broker is left: %v", err)
	}
}

func TestRunEndsOnASignalWhileServersStart(t *testing.T) {
	kit.Long(t)
	kit.PrivatePostgres(t) // skips the test if PostgreSQL is missing
	dir := t.TempDir()
	if err := os.Chmod(filepath.Dir(dir), 0o755); err != nil { // PostgreSQL may run as another user
		t.Fatal(err)
	}
	t.Setenv("TMPDIR", dir)
	ended := make(chan int, 1)
	go func() { ended <- run([]string{"-private", "true"}, &bytes.Buffer{}) }()
	kit.Eventually(t, time.Minute, "a server starts", func() bool {
		logs, _ := filepath.Glob(filepath.Join(dir, "*", "rabbitmq.log"))
		return len(logs) > 0
	})
	kit.OK(t, syscall.Kill(os.Getpid(), syscall.SIGTERM))
	if status := <-ended; status != 128+15 {
		t.Errorf("the status is %d, want 143", status)
	}
	if left, _ := os.ReadDir(dir); len(left) > 0 {
		t.Errorf("directories are left: %v", left)
	}
}
