package main

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/watermill-once/once/internal/testkit"
)

// buildWith builds the command with one more migration for PostgreSQL.
func buildWith(t *testing.T, name, migration string) (path string) {
	t.Helper()
	dir := t.TempDir()
	tables, err := filepath.Abs("../../schema")
	if err != nil {
		t.Fatal(err)
	}
	file, overlay := filepath.Join(dir, name), filepath.Join(dir, "overlay.json")
	text, err := json.Marshal(map[string]any{"Replace": map[string]string{
		filepath.Join(tables, "postgres", name): file, filepath.Join(tables, "sqlite", name): file,
	}})
	if err != nil {
		t.Fatal(err)
	}
	for path, content := range map[string]string{file: migration, overlay: string(text)} {
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	path = filepath.Join(dir, "once")
	if output, err := exec.CommandContext(t.Context(), "go", "build", "-overlay", overlay, "-o", path, ".").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, output)
	}
	return path
}

// refusedForLong waits until the broker has refused all messages. It then changes their
// rows as if the broker had refused them 11 times within 20 minutes, so that the test
// need not wait that long.
func refusedForLong(t *testing.T, db testkit.Database) {
	t.Helper()
	testkit.Eventually(t, time.Minute, "all messages were refused and wait", func() bool {
		result, err := db.ExecContext(t.Context(), `
			UPDATE once_outbox SET attempts = 11, due_at = now() + interval '4 minutes', failing_since = now() - interval '20 minutes'
			WHERE (SELECT COUNT(*) FROM once_outbox WHERE due_at > now() + interval '300 milliseconds') = (SELECT COUNT(*) FROM once_outbox)`)
		if err != nil {
			t.Fatal(err)
		}
		n, err := result.RowsAffected()
		return err == nil && n > 0
	})
}

// later makes all rows three hours older.
func later(t *testing.T, orders, payments testkit.Database) {
	t.Helper()
	for _, statement := range []struct {
		db    testkit.Database
		query string
	}{
		{orders, `UPDATE once_outbox_sent SET sent_at = sent_at - interval '3 hours', created_at = created_at - interval '3 hours'`},
		{payments, `UPDATE once_inbox SET processed_at = processed_at - interval '3 hours'`},
		{payments, `UPDATE once_consumers SET registered_at = registered_at - interval '3 hours'`},
		{payments, `UPDATE once_parked SET created_at = created_at - interval '3 hours', finished_at = finished_at - interval '3 hours'`},
	} {
		if _, err := statement.db.ExecContext(t.Context(), statement.query); err != nil {
			t.Fatal(err)
		}
	}
}

// binary is the command of another release.
type binary struct {
	*shell

	path string
}

func (b *binary) command(args ...string) *exec.Cmd {
	cmd := exec.CommandContext(context.WithoutCancel(b.Context()), b.path, args...)
	cmd.Env = os.Environ()
	for name, value := range b.env {
		cmd.Env = append(cmd.Env, name+"="+value)
	}
	return cmd
}

// newer works like the method types, but runs the command of another release.
func (d *day) newer(b *binary, code int, args ...string) {
	d.Helper()
	var stdout, stderr strings.Builder
	cmd := b.command(args...)
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil && cmd.ProcessState == nil {
		d.Fatal(err)
	}
	d.text.WriteString(d.block("orders (new release)", args, result{cmd.ProcessState.ExitCode(), stdout.String(), stderr.String()}, code))
}

// start starts a command. The returned function stop interrupts the command, and fails
// the test unless the command ends with exit code 0.
func (b *binary) start(args ...string) (stop func()) {
	b.Helper()
	var stderr buffer
	cmd := b.command(args...)
	cmd.Stderr = &stderr
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	var ended atomic.Bool
	b.Cleanup(func() {
		if !ended.Load() {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		}
	})
	return func() {
		ended.Store(true)
		if err := errors.Join(cmd.Process.Signal(os.Interrupt), cmd.Wait()); err != nil {
			b.Errorf("%v\n%s", err, stderr.String())
		}
	}
}
