package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/schema"
)

var update = flag.Bool("update", false, "write the golden files in testdata")

// asCommand is an environment variable. If it is set, the program of the tests is the
// command once, with its flags.
const asCommand = "ONCE_TEST_AS_COMMAND"

func TestMain(m *testing.M) {
	if os.Getenv(asCommand) != "" {
		main()
	}
	if name := os.Getenv(stallingWriter); name != "" {
		_, _ = writeFile(name, half{}) // until it is killed
		os.Exit(1)
	}
	if dir := os.Getenv(archivingTo); dir != "" {
		os.Exit(archiveUntilKilled(dir))
	}
	kit.MainWithTables(m, kit.StockAMQP)
}

// eachDatabase is like [kit.EachDatabase]. make test leaves out PostgreSQL, because each
// command opens its own sessions, and the tests of package operate and of its folders
// run the same statements with both kinds of database.
func eachDatabase(t *testing.T, test func(t *testing.T, db kit.Database)) {
	t.Helper()
	t.Run("sqlite", func(t *testing.T) { test(t, kit.SQLite(t)) })
	t.Run("postgres", func(t *testing.T) {
		kit.Long(t)
		test(t, kit.Postgres(t))
	})
}

// shell runs the command as a shell would, with an environment of its own.
type shell struct {
	*testing.T

	env   map[string]string
	stdin string
}

// newShell returns a shell for a database. It creates the tables.
func newShell(t *testing.T, db kit.Database) *shell {
	t.Helper()
	kit.OK(t, schema.Up(t.Context(), db.DB, schema.Config{Dialect: schema.Dialect(db.Dialect)}))
	return &shell{T: t, env: map[string]string{"ONCE_DSN": db.DSN, "ONCE_ACTOR": "ann"}}
}

// result is the result of one command.
type result struct {
	code           int
	stdout, stderr string
}

// doubledPrefix matches an error in which the name of the command, or two packages in a
// row, wrote the same prefix.
var doubledPrefix = regexp.MustCompile(`(?m)^once: once\b|\b(?:once: once|quarantine: quarantine|dead: dead|outbox: outbox|` +
	`parked: parked|schema: schema|forwarder: forwarder|reconcile: reconcile|trace: trace|status: status|audit: audit|rabbit: rabbit): `)

func (s *shell) run(ctx context.Context, args ...string) result {
	var stdout, stderr kit.Buffer
	a := &app{
		stdin: strings.NewReader(s.stdin), stdout: &stdout, stderr: &stderr, width: 0,
		env: func(name string) string { return s.env[name] },
	}
	code := a.run(ctx, args)
	if doubled := doubledPrefix.FindString(stderr.String()); doubled != "" {
		s.Errorf("once %s: the error begins twice with %q:\n%s", strings.Join(args, " "), doubled, stderr.String())
	}
	return result{code, stdout.String(), stderr.String()}
}

// once runs a command and returns its output. It fails the test unless the command ends
// with the exit code in code.
func (s *shell) once(code int, args ...string) string {
	s.Helper()
	got := s.run(s.Context(), args...)
	if got.code != code {
		s.Fatalf("once %s: exit code %d, want %d\n%s%s", strings.Join(args, " "), got.code, code, got.stdout, got.stderr)
	}
	return got.stdout + got.stderr
}

// object runs a command with --json and decodes its output. It fails the test if the
// output contains a field that the type T does not have.
func object[T any](s *shell, code int, args ...string) (value T) {
	s.Helper()
	got := s.run(s.Context(), append(args, "--json")...)
	decoder := json.NewDecoder(strings.NewReader(got.stdout))
	decoder.DisallowUnknownFields()
	if err := errors.Join(decoder.Decode(&value), one(decoder)); err != nil || got.code != code {
		s.Fatalf("once %s --json: exit code %d, want %d: %v\n%s%s", strings.Join(args, " "), got.code, code, err, got.stdout, got.stderr)
	}
	return value
}

func one(decoder *json.Decoder) error {
	if decoder.More() {
		return errors.New("the output has more than one object")
	}
	return nil
}

// says fails the test unless text contains all parts.
func (s *shell) says(text string, parts ...string) {
	s.Helper()
	for _, part := range parts {
		if !strings.Contains(text, part) {
			s.Errorf("%q is not in\n%s", part, text)
		}
	}
}

// golden compares text with a file in testdata.
func golden(t *testing.T, name, text string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		kit.OK(t, os.WriteFile(path, []byte(text), 0o600))
	}
	want := kit.ReadFile(t, path)
	if string(want) != text {
		t.Errorf("%s differs; go test -update writes it. Got:\n%s", path, text)
	}
}
