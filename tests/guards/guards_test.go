package main

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/watermill-once/once/internal/test/kit"
)

// The patches of all guards can be applied to the code.
func TestEveryGuardIsInTheCode(t *testing.T) {
	root, all := loadAll(t)
	for _, g := range all {
		kit.Check(t, g.remove(t.Context(), root, t.TempDir()))
	}
}

func TestAPatchThatDoesNotFitIsRefused(t *testing.T) {
	root, all := loadAll(t)
	g := all[0]
	other := t.TempDir()
	for _, name := range g.files {
		into := filepath.Join(other, name)
		kit.OK(t, errors.Join(os.MkdirAll(filepath.Dir(into), 0o700), os.WriteFile(into, []byte("package other\n"), 0o600)))
	}
	patch := filepath.Join(other, g.patch)
	content, err := os.ReadFile(filepath.Join(root, g.patch))
	kit.OK(t, errors.Join(err, os.MkdirAll(filepath.Dir(patch), 0o700), os.WriteFile(patch, content, 0o600)))
	if err := g.remove(t.Context(), other, t.TempDir()); err == nil || !strings.Contains(err.Error(), g.patch+" does not apply") {
		t.Error(err)
	}
	for _, text := range []string{
		"",
		"Trap: 1\nGuard: x\nTest: T\n--- a/f\n+++ b/f\n",
		"Trap: 1\nGuard: x\nTest: (\n\n--- a/f\n+++ b/f\n",
		"Trap: 1\nGuard: x\nTest: T\n\n--- a/f\n+++ b/g\n",
	} {
		if g, err := parseGuard(text); err == nil {
			t.Errorf("%q: %+v", text, g)
		}
	}
}

// Every trap that has a test has a guard.
func TestEveryTrapHasAGuard(t *testing.T) {
	root, all := loadAll(t)
	guarded := map[int]bool{}
	for _, g := range all {
		guarded[g.trap] = true
	}
	for trap := range traps(t, root) {
		if !guarded[trap] {
			t.Errorf("trap %d has a test, and no patch in testdata/guards of the test's package", trap)
		}
	}
}

func loadAll(t *testing.T) (root string, all []guard) {
	t.Helper()
	root, err := findRoot()
	kit.OK(t, err)
	all, err = load(root)
	if err != nil || len(all) < 150 {
		t.Fatal(len(all), err)
	}
	return root, all
}

// traps returns the numbers of the traps that have tests.
func traps(t *testing.T, root string) map[int]bool {
	t.Helper()
	// The comment above a test begins with its trap. In some packages the name of the test contains
	// the trap instead.
	named := regexp.MustCompile(`(?m)^(?:// Trap |func TestTrap)(\d+)`)
	found := map[int]bool{}
	kit.OK(t, filepath.WalkDir(root, func(path string, _ fs.DirEntry, err error) error {
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
	}))
	if len(found) < 70 {
		t.Errorf("%d traps have tests", len(found))
	}
	return found
}
