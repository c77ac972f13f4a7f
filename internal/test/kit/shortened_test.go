package kit_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/watermill-once/once/internal/test/kit"
)

// After make test, make test-all can repeat only the tests that Long and Sized have noted.
func TestShortenedTestsAreNoted(t *testing.T) {
	if !testing.Short() {
		t.Skip("Long and Sized note nothing without -short, which make test uses")
	}
	file := filepath.Join(t.TempDir(), "shortened")
	t.Setenv(kit.Shortened, file)
	t.Run("long", func(t *testing.T) { kit.Long(t) })
	t.Run("sized", func(t *testing.T) {
		if n := kit.Sized(1, 2); n != 1 {
			t.Errorf("got %d, want the small size", n)
		}
	})
	const line = "github.com/watermill-once/once/internal/test/kit TestShortenedTestsAreNoted\n"
	if text, err := os.ReadFile(file); err != nil || string(text) != line+line {
		t.Errorf("the file contains %q, %v", text, err)
	}
}
