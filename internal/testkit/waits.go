package testkit

import (
	"context"
	"strings"
	"testing"
	"time"
)

// Waits checks that call waits until its context ends, and that its error contains text.
// On a busy machine a short context can end before call begins to wait. Therefore Waits
// calls it again with twice as much time, up to a minute, until the error has the text.
func Waits(t testing.TB, text string, call func(ctx context.Context) error) {
	t.Helper()
	for timeout := 300 * time.Millisecond; ; timeout *= 2 {
		ctx, cancel := context.WithTimeout(t.Context(), timeout)
		err := call(ctx)
		cancel()
		switch {
		case err == nil:
			t.Fatalf("no error, want one with %q", text)
		case strings.Contains(err.Error(), text):
			return
		case timeout > time.Minute:
			t.Fatalf("got %v, want an error with %q", err, text)
		}
	}
}
