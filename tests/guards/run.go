package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"time"

	"github.com/watermill-once/once/internal/test/kit"
)

// Results of a test without its guard.
const (
	red    = "red"
	hangs  = "red: it hangs"
	green  = "GREEN: the test passes without its guard"
	broken = "BROKEN: it does not build"
	absent = "ABSENT: no such test ran"
	left   = "SKIPPED: the test needs something that is not on this machine"
)

// run tries each guard, and prints a line with the result. If tests do not fail without
// their guard, it returns an error with the number of these tests.
//
// Without its guard, a test mostly waits for events that do not come, so each core tries several
// guards at the same time.
func run(ctx context.Context, root string, guards []guard, timeout time.Duration, out io.Writer) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var (
		trying sync.WaitGroup
		free   = make(chan struct{}, atOnce*runtime.GOMAXPROCS(0))
		mu     sync.Mutex // for out and bad
		bad    int
	)
	for _, g := range guards {
		free <- struct{}{}
		trying.Go(func() {
			defer func() { <-free }()
			began := time.Now()
			verdict, output, err := g.try(ctx, root, timeout)
			if err != nil {
				cancel(err)
				return
			}
			mu.Lock()
			defer mu.Unlock()
			fmt.Fprintf(out, "trap %02d  %-60s %5.0fs  %s\n", g.trap, g.what, time.Since(began).Seconds(), verdict)
			if verdict != red && verdict != hangs {
				fmt.Fprintln(out, output)
				bad++
			}
		})
	}
	trying.Wait()
	if err := context.Cause(ctx); err != nil {
		return err
	}
	fmt.Fprintf(out, "guards=%d red=%d\n", len(guards), len(guards)-bad)
	if bad > 0 {
		return fmt.Errorf("%d of %d tests do not need their guard", bad, len(guards))
	}
	return nil
}

// atOnce is the number of guards that each core tries at the same time.
const atOnce = 2

func (g guard) try(ctx context.Context, root string, timeout time.Duration) (verdict, output string, err error) {
	dir, err := os.MkdirTemp("", "once-guards-")
	if err != nil {
		return "", "", err
	}
	defer os.RemoveAll(dir)
	if err := g.remove(ctx, root, dir); err != nil {
		return "", "", err
	}
	overlay, err := g.overlay(root, dir)
	if err != nil {
		return "", "", err
	}
	cmd := exec.CommandContext(ctx, "go", "test", "-count", "1", "-failfast", "-v", "-vet", "off",
		"-timeout", timeout.String(), "-run", g.test, "./"+g.pkg)
	cmd.Dir = root
	cmd.Env = append(os.Environ(),
		"GOFLAGS="+os.Getenv("GOFLAGS")+" '-overlay="+overlay+"'", // also for programs that the test builds
		kit.Impatient+"=1",
		kit.OwnDatabases+"=1",
		"REQUIRE_BACKENDS=") // without its server a test is skipped, and does not fail
	raw, err := cmd.CombinedOutput()
	output = string(raw)
	switch {
	case ctx.Err() != nil:
		return "", "", ctx.Err()
	case strings.Contains(output, "[build failed]"), strings.Contains(output, "[setup failed]"):
		return broken, output, nil
	case !strings.Contains(output, "=== RUN "):
		return absent, output, nil
	case err == nil && strings.Contains(output, "--- SKIP"):
		return left, output, nil
	case err == nil:
		return green, output, nil
	case strings.Contains(output, "panic: test timed out"):
		return hangs, output, nil
	}
	return red, output, nil
}

// overlay writes the file for the flag -overlay of the go command. With this flag, the
// compiler reads the changed files in the directory dir instead of the original files.
func (g guard) overlay(root, dir string) (name string, err error) {
	replace := map[string]string{}
	for _, file := range g.files {
		replace[filepath.Join(root, file)] = filepath.Join(dir, file)
	}
	text, err := json.Marshal(map[string]map[string]string{"Replace": replace})
	if err != nil {
		return "", err
	}
	name = filepath.Join(dir, "overlay.json")
	return name, os.WriteFile(name, text, 0o600)
}

// findRoot returns the directory of go.work, which is the root of the repository.
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
