package testkit_test

import (
	"testing"
	"time"

	"github.com/watermill-once/once/internal/testkit"
)

func waitForEnd(end chan bool) { <-end }

func TestGoroutinesAreCountedByTheirStack(t *testing.T) {
	const function = ".waitForEnd("
	end := make(chan bool)
	for range 2 {
		go waitForEnd(end)
	}
	testkit.Eventually(t, time.Minute, "two wait", func() bool { return testkit.Goroutines(function, "[chan receive") == 2 })
	if n := testkit.Goroutines(function, "[chan send"); n != 0 {
		t.Errorf("%d goroutines send", n)
	}
	close(end)
	testkit.Eventually(t, time.Minute, "none is left", func() bool { return testkit.Goroutines(function) == 0 })
}
