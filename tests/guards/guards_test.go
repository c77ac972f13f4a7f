package main

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// The command cannot remove a guard that is missing in the code, or that is there
// twice.
func TestEveryGuardIsInTheCodeOnce(t *testing.T) {
	root, err := findRoot()
	if err != nil {
		t.Fatal(err)
	}
	for _, g := range guards() {
		if _, err := g.open(root); err != nil {
			t.Error(err)
		}
		if g.guard == g.without || g.what == "" || g.pkg == "" {
			t.Errorf("%+v", g)
		}
	}
}

// Every trap that has a test has a guard.
func TestEveryTrapHasAGuard(t *testing.T) {
	guarded := map[int]bool{}
	for _, g := range guards() {
		guarded[g.trap] = true
	}
	for trap := range traps(t) {
		if !guarded[trap] {
			t.Errorf("trap %d has a test, and no guard here", trap)
		}
	}
}

// traps returns the numbers of the traps that have tests.
func traps(t *testing.T) map[int]bool {
	t.Helper()
	root, err := findRoot()
	if err != nil {
		t.Fatal(err)
	}
	// The comment above a test begins with its trap. In some packages the name does.
	named := regexp.MustCompile(`(?m)^(?:// Trap |func TestTrap)(\d\d)`)
	found := map[int]bool{}
	err = filepath.WalkDir(root, func(path string, _ fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		content, err := os.ReadFile(path)
		for _, match := range named.FindAllStringSubmatch(string(content), -1) {
			n, err := strconv.Atoi(match[1])
			if err != nil {
				return err
			}
			found[n] = true
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(found) < 70 {
		t.Errorf("%d traps have tests", len(found))
	}
	return found
}
