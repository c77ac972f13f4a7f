package testkit

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
)

// programs contains the paths of the programs that Program has built in this process,
// by build tags.
var programs struct {
	sync.Mutex
	built map[string]string
}

// Program builds the tests of the current package as a program, with the given build
// tags, and returns its path. It builds the program only once for all tests of the
// package. Use it in tests that start many processes: the program is built without the
// race detector, so it starts faster than os.Args[0].
func Program(t testing.TB, tags string) string {
	t.Helper()
	programs.Lock()
	defer programs.Unlock()
	if path, ok := programs.built[tags]; ok {
		return path
	}
	path, err := buildProgram(tags)
	if err != nil {
		t.Fatalf("testkit: %v", err)
	}
	if programs.built == nil {
		programs.built = map[string]string{}
	}
	programs.built[tags] = path
	return path
}

func buildProgram(tags string) (string, error) {
	dir, err := os.MkdirTemp("", "once-test")
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, "life.test")
	// make check vets the code, and nobody debugs this program.
	output, err := exec.Command("go", "test", "-c", "-vet", "off", "-ldflags", "-s -w", "-tags", tags, "-o", path, ".").CombinedOutput()
	if err != nil {
		return "", errors.Join(fmt.Errorf("build the tests as a program: %w: %s", err, output), os.RemoveAll(dir))
	}
	AtEnd(func() error { return os.RemoveAll(dir) })
	return path, nil
}
