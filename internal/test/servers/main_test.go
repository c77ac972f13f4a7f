package servers_test

import (
	"os"
	"testing"

	"github.com/watermill-once/once/internal/test/kit"
)

func TestMain(m *testing.M) {
	if os.Getenv(holdVariable) != "" {
		hold()
	}
	kit.Main(m)
}

// mustBeGone fails the test if a process still runs, or the directory still exists.
func mustBeGone(t *testing.T, left []int, dir string) {
	t.Helper()
	if len(left) > 0 {
		t.Errorf("processes are left: %v", left)
	}
	if _, err := os.Stat(dir); !os.IsNotExist(err) {
		t.Errorf("the directory %s is left: %v", dir, err)
	}
}
