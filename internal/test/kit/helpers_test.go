package kit_test

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/watermill-once/once/internal/test/kit"
)

// recorder is a testing.TB that records the failure and the log lines of a test.
type recorder struct {
	testing.TB

	failure string
	lines   []string
	cleanup func()
}

func (r *recorder) Helper() {}

func (r *recorder) Cleanup(f func()) { r.cleanup = f }

func (r *recorder) Log(args ...any) { r.lines = append(r.lines, fmt.Sprint(args...)) }

func (r *recorder) Fatalf(format string, args ...any) {
	r.failure = fmt.Sprintf(format, args...)
	runtime.Goexit()
}

func TestEventuallyFailsAfterTimeout(t *testing.T) {
	var r recorder
	var wait sync.WaitGroup
	wait.Go(func() {
		kit.Eventually(&r, 20*time.Millisecond, "the moon is blue", func() bool { return false })
	})
	wait.Wait()
	if !strings.Contains(r.failure, "the moon is blue") {
		t.Errorf("the test failed with %q", r.failure)
	}

	calls := 0
	kit.Eventually(t, time.Minute, "three calls", func() bool {
		calls++
		return calls == 3
	})
}

func TestFallsFailsIfNumberDoesNotFall(t *testing.T) {
	n := 5
	kit.Falls(t, time.Minute, "green bottles", func() int { n--; return max(n, 0) })
	if n > 0 {
		t.Errorf("%d are left", n)
	}

	var r recorder
	var wait sync.WaitGroup
	wait.Go(func() {
		kit.Falls(&r, 20*time.Millisecond, "green bottles", func() int { return max(n+5, 2) })
	})
	wait.Wait()
	if !strings.Contains(r.failure, "green bottles") {
		t.Errorf("the test failed with %q", r.failure)
	}
}

func TestLoggerDropsLinesAfterItsTest(t *testing.T) {
	var r recorder
	logger := kit.Logger(&r).With(watermill.LogFields{"b": 2, "a": 1})
	logger.Error("in time", errors.New("broken"), watermill.LogFields{"c": 3})
	r.cleanup()
	logger.Info("too late", nil) // t.Log would panic
	if want := []string{`ERROR in time a=1 b=2 c=3 err="broken"`}; !slices.Equal(r.lines, want) {
		t.Errorf("logged %q, want %q", r.lines, want)
	}
}

func waitForEnd(end chan bool) { <-end }

func TestGoroutinesAreCountedByTheirStack(t *testing.T) {
	const function = ".waitForEnd("
	end := make(chan bool)
	for range 2 {
		go waitForEnd(end)
	}
	kit.Eventually(t, time.Minute, "two wait", func() bool { return kit.Goroutines(function, "[chan receive") == 2 })
	if n := kit.Goroutines(function, "[chan send"); n != 0 {
		t.Errorf("%d goroutines send", n)
	}
	close(end)
	kit.Eventually(t, time.Minute, "none is left", func() bool { return kit.Goroutines(function) == 0 })
}
