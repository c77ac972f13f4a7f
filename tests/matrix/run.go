package main

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	_ "github.com/lib/pq"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/watermill-once/once/internal/test/servers"
)

func findRoot() (string, error) {
	work, err := exec.Command("go", "env", "GOWORK").Output()
	if err != nil {
		return "", err
	}
	root := filepath.Dir(strings.TrimSpace(string(work)))
	if root == "." {
		return "", errors.New("not in the repository")
	}
	return root, nil
}

func versions(ctx context.Context, set *servers.Set) (postgres, rabbit string, err error) {
	db, err := sql.Open("postgres", set.PGDSN)
	if err != nil {
		return "", "", err
	}
	defer db.Close()
	if err := db.QueryRowContext(ctx, "SHOW server_version").Scan(&postgres); err != nil {
		return "", "", err
	}
	postgres, _, _ = strings.Cut(postgres, " ") // the rest names the package
	conn, err := amqp.Dial(set.AMQPURL)
	if err != nil {
		return "", "", err
	}
	defer conn.Close()
	rabbit, _ = conn.Properties["version"].(string)
	return postgres, rabbit, nil
}

// event is a line of go test -json.
type event struct {
	Action  string  `json:"Action"`
	Package string  `json:"Package"`
	Test    string  `json:"Test"`
	Output  string  `json:"Output"`
	Elapsed float64 `json:"Elapsed"`
}

// tally counts the tests of a run, without subtests.
type tally struct{ passed, skipped, failed int }

// runTests runs the tests, and prints a line for each package and the output of the
// tests that fail. It returns an error if a test fails, or if none ran.
func runTests(ctx context.Context, root string, o options, environment []string, out io.Writer) (tally, error) {
	args := []string{"test", "-json", "-vet", "off", "-ldflags=-w", "-count", "1", "-p", "3", "-parallel", "4", "-timeout", "30m"}
	chosen := packages
	if o.smoke {
		chosen = smoke
	}
	if o.smoke || o.short {
		args = append(args, "-short")
	}
	cmd := exec.CommandContext(ctx, "go", append(args, chosen...)...)
	cmd.Dir, cmd.Stderr = root, os.Stderr
	cmd.Env = append(os.Environ(), environment...)
	pipe, err := cmd.StdoutPipe()
	if err != nil {
		return tally{}, err
	}
	if err := cmd.Start(); err != nil {
		return tally{}, err
	}
	t, err := follow(pipe, out)
	err = errors.Join(err, cmd.Wait())
	switch {
	case err != nil:
		return t, fmt.Errorf("%d tests passed, %d failed: %w", t.passed, t.failed, err)
	case t.passed == 0:
		return t, errors.New("no test ran")
	}
	return t, nil
}

func follow(events io.Reader, out io.Writer) (t tally, err error) {
	output := map[string]string{} // by test
	decoder := json.NewDecoder(events)
	for {
		var e event
		if err := decoder.Decode(&e); errors.Is(err, io.EOF) {
			return t, nil
		} else if err != nil {
			return t, err
		}
		test := e.Package + " " + e.Test
		switch {
		case e.Action == "output" || e.Action == "build-output":
			output[test] += e.Output
			continue
		case e.Action == "fail":
			fmt.Fprint(out, output[test])
		case e.Action != "pass" && e.Action != "skip":
			continue
		}
		delete(output, test)
		if e.Test == "" {
			fmt.Fprintf(out, "%s\t%s\t%.0fs\n", e.Action, e.Package, e.Elapsed)
		} else if !strings.Contains(e.Test, "/") {
			t.count(e.Action)
		}
	}
}

func (t *tally) count(action string) {
	switch action {
	case "pass":
		t.passed++
	case "skip":
		t.skipped++
	case "fail":
		t.failed++
	}
}

// kinds are the faults of the short chaos run.
const kinds = "writer-kill,forwarder-kill,consumer-kill,cut-commit-writer,cut-commit-consumer,cut-before-confirm,cut-before-ack," +
	"duplicates,backend-kill,memory-alarm,queue-full,pg-reset,amqp-half-open,requeued,oversized-body,handler-times-out,replay"

// runChaos runs chaos for about a minute, and returns the last line of its output, which
// is the result.
func runChaos(ctx context.Context, root string, more ...string) (string, error) {
	args := append([]string{"run", "./tests/chaos", "-messages", "3000", "-bites", "1", "-only", kinds}, more...)
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir, cmd.Stderr = root, os.Stderr
	output, err := cmd.Output()
	text := strings.TrimSpace(string(output))
	if err != nil {
		return "", fmt.Errorf("chaos: %w\n%s", err, text)
	}
	return text[strings.LastIndex(text, "\n")+1:], nil
}

// dependencies are the modules that -newest raises to their newest versions.
var dependencies = []string{
	"github.com/ThreeDotsLabs/watermill", "github.com/ThreeDotsLabs/watermill-amqp/v2", "github.com/ThreeDotsLabs/watermill-amqp/v3",
	"github.com/ThreeDotsLabs/watermill-sql/v3", "github.com/ThreeDotsLabs/watermill-sql/v4",
	"github.com/rabbitmq/amqp091-go", "github.com/jackc/pgx/v5", "github.com/lib/pq",
	"go.opentelemetry.io/otel", "go.opentelemetry.io/otel/metric", "go.opentelemetry.io/otel/trace", "go.opentelemetry.io/otel/sdk",
	"go.opentelemetry.io/otel/sdk/metric",
}

// useNewest makes the following go commands of this process use the newest versions of
// the dependencies. It writes a workspace of the modules of the repository and one more
// module, which requires these versions, into dir. The go.mod files of the repository
// contain the lowest versions that work, and stay as they are. It returns the versions.
func useNewest(ctx context.Context, root, dir string) (string, error) {
	newest := filepath.Join(dir, "newest")
	if err := os.Mkdir(newest, 0o750); err != nil {
		return "", err
	}
	modules, err := goCommand(ctx, root, "list", "-m", "-f", "{{.Dir}}")
	if err != nil {
		return "", err
	}
	sums, err := os.ReadFile(filepath.Join(root, "go.work.sum"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	if err := os.Setenv("GOWORK", "off"); err != nil {
		return "", err
	}
	get := []string{"get"}
	for _, module := range dependencies {
		get = append(get, module+"@latest")
	}
	if _, err := goCommand(ctx, newest, "mod", "init", "example.org/newest"); err != nil {
		return "", err
	}
	if _, err := goCommand(ctx, newest, get...); err != nil {
		return "", err
	}
	versions, err := goCommand(ctx, newest, append([]string{"list", "-m"}, dependencies...)...)
	if err != nil {
		return "", err
	}
	work := filepath.Join(dir, "go.work")
	if err := os.Setenv("GOWORK", work); err != nil {
		return "", err
	}
	if err := os.WriteFile(work+".sum", sums, 0o600); err != nil {
		return "", err
	}
	if _, err := goCommand(ctx, dir, append([]string{"work", "init", newest}, strings.Fields(modules)...)...); err != nil {
		return "", err
	}
	return strings.ReplaceAll(strings.TrimSpace(versions), "\n", ", "), nil
}

// goCommand runs the go command in dir, and returns its output.
func goCommand(ctx context.Context, dir string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir, cmd.Stderr = dir, os.Stderr
	output, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("go %s: %w", strings.Join(args, " "), err)
	}
	return string(output), nil
}
