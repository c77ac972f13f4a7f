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

// programs are those that were built for tests of this process, by their tags.
var programs struct {
	sync.Mutex
	built map[string]string
}

// Program returns the path of the package's own tests as a program, built
// with the build tags, if any, once for all tests of the package. It is for
// tests that start very many processes: it starts in a part of the time that
// os.Args[0] does, since it is built without the race detector.
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
	output, err := exec.Command("go", "test", "-c", "-tags", tags, "-o", path, ".").CombinedOutput()
	if err != nil {
		return "", errors.Join(fmt.Errorf("build the tests as a program: %w: %s", err, output), os.RemoveAll(dir))
	}
	atEnd(func() error { return os.RemoveAll(dir) })
	return path, nil
}
