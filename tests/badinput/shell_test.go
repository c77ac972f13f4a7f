package badinput

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/watermill-once/once/internal/test/kit"
)

// shell runs command lines in a known environment. It finds the files that they leave
// behind.
type shell struct {
	environment []string
	scratch     string
}

func newShell(t *testing.T, bin string) *shell {
	t.Helper()
	s := &shell{scratch: t.TempDir()}
	for _, dir := range []string{"work", "tmp", "dir"} {
		kit.OK(t, os.Mkdir(filepath.Join(s.scratch, dir), 0o755))
	}
	kit.OK(t, os.WriteFile(filepath.Join(s.scratch, "file"), nil, 0o600))
	absolute, err := filepath.Abs(root)
	kit.OK(t, err)
	// If make runs this test, the environment contains variables of make.
	s.environment = slices.DeleteFunc(os.Environ(), func(variable string) bool {
		name, _, _ := strings.Cut(variable, "=")
		return name != "HOME" && (name == "GO" || !strings.HasPrefix(name, "GO"))
	})
	for name, value := range map[string]string{
		"PATH":     bin + string(filepath.ListSeparator) + os.Getenv("PATH"),
		"TMPDIR":   s.path("tmp"),
		"bin":      bin,
		"root":     absolute,
		"dir":      s.path("dir"),
		"file":     s.path("file"),
		"gone":     s.path("gone/file"),
		"PG_DSN":   "postgres://u:canary@127.0.0.1:1/d?sslmode=disable",
		"AMQP_URL": "amqp://u:canary@127.0.0.1:1/",
	} {
		s.set(name, value)
	}
	return s
}

func (s *shell) path(name string) string { return filepath.Join(s.scratch, name) }

func (s *shell) set(name, value string) { s.environment = append(s.environment, name+"="+value) }

// result contains the exit status and the output of a command line.
type result struct {
	line           string
	status         int
	stdout, stderr string
}

// soon is the time limit of a command. Refusing a command line takes less time, and the
// work of a command takes longer.
const soon = 5 * time.Minute

func (s *shell) run(t *testing.T, typed string) result {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), soon)
	defer cancel()
	var stdout, stderr bytes.Buffer
	cmd := exec.CommandContext(ctx, "sh", "-c", typed)
	cmd.Env, cmd.Dir, cmd.Stdout, cmd.Stderr = s.environment, s.path("work"), &stdout, &stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	err := cmd.Run()
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	if ctx.Err() != nil {
		t.Errorf("the command did not end in time")
	} else if err := syscall.Kill(-cmd.Process.Pid, 0); !errors.Is(err, syscall.ESRCH) {
		t.Errorf("processes are left: %v", err)
	}
	return result{typed, cmd.ProcessState.ExitCode(), stdout.String(), stderr.String()}
}

func (s *shell) refuses(t *testing.T, l line, status int) {
	t.Helper()
	r := s.run(t, l.typed)
	if r.status != status || r.stdout != "" || !says(r.stderr, l.says) {
		t.Errorf("status %d, stdout %q, want status %d and %q\n%s", r.status, r.stdout, status, l.says, r.stderr)
	}
	// There may be one line for each mistake, and one that names -help.
	if most := strings.Count(l.says, "...") + 2; strings.Count(r.stderr, "\n") > most || strings.Contains(r.stderr, "goroutine") {
		t.Errorf("it prints more than the error:\n%s", r.stderr)
	}
	if strings.Contains(r.stderr, "canary") || strings.Contains(r.stderr, "can ary") {
		t.Errorf("the password is shown:\n%s", r.stderr)
	}
	for _, dir := range []string{"work", "tmp", "dir"} {
		if err := filepath.WalkDir(s.path(dir), func(path string, _ fs.DirEntry, err error) error {
			if path != s.path(dir) {
				t.Errorf("the command has left %s behind", path)
			}
			return err
		}); err != nil {
			t.Error(err)
		}
	}
}

// says reports whether text contains the parts in this order. parts are separated by
// "...".
func says(text, parts string) bool {
	for part := range strings.SplitSeq(parts, "...") {
		_, after, found := strings.Cut(text, part)
		if !found {
			return false
		}
		text = after
	}
	return true
}

func helps(t *testing.T, r result, flags []string) {
	t.Helper()
	if r.status != 0 || r.stdout != "" && r.stderr != "" {
		t.Errorf("%s: status %d\n%s%s", r.line, r.status, r.stdout, r.stderr)
	}
	for _, flag := range flags {
		if !strings.Contains(r.stdout+r.stderr, "\n  -"+flag) {
			t.Errorf("the help of %s does not describe -%s:\n%s%s", r.line, flag, r.stdout, r.stderr)
		}
	}
}
