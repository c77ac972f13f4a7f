package testkit

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"
)

// Waits checks that call waits until the deadline of its context, and that its error
// then contains text. On a busy machine the deadline can pass before call begins to
// wait. Therefore Waits calls it again with twice as much time, until the error contains
// text or a call had more than a minute.
func Waits(t testing.TB, text string, call func(ctx context.Context) error) {
	t.Helper()
	for timeout := 300 * time.Millisecond; ; timeout *= 2 {
		ctx, cancel := context.WithTimeout(t.Context(), timeout)
		err := call(ctx)
		cancel()
		switch {
		case err == nil:
			t.Fatalf("no error, want one with %q", text)
		case strings.Contains(err.Error(), text) && errors.Is(err, context.DeadlineExceeded):
			return
		case timeout > time.Minute:
			t.Fatalf("got %v, want an error with %q and the deadline", err, text)
		}
	}
}
