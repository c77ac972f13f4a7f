package parked

import (
	"errors"
	"fmt"
	"io"
	"testing"
)

func TestErrorTypeIsThatOfTheInnermostError(t *testing.T) {
	t.Parallel()
	wrapped := fmt.Errorf("b: %w", fmt.Errorf("a: %w", &LargeError{}))
	for err, want := range map[error]string{
		io.EOF:                "*errors.errorString",
		wrapped:               "*parked.LargeError",
		errors.Join(io.EOF):   "*errors.joinError",
		knownError{"x", "*T"}: "*T",
		fmt.Errorf("a: %w", knownError{"x", "*T"}): "*T",
	} {
		if got := errorType(err); got != want {
			t.Errorf("the type of %q is %s, want %s", err, got, want)
		}
	}
}
