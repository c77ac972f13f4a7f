package main

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// patches is the folder of a package's guards, relative to the package. The guards of the package in
// the root are in the folder of this package, which has none itself.
const (
	patches     = "testdata/guards"
	rootPatches = "tests/guards/testdata/guards"
)

// guard is code that prevents a trap. A patch removes this code.
type guard struct {
	trap int
	what string // what the guard does
	test string // pattern of tests; at least one of them must fail without the guard

	pkg   string   // package of these tests, relative to the root of the repository
	patch string   // path of the patch, relative to the root of the repository
	files []string // paths of the files that the patch changes, relative to the root of the repository
}

// load reads the guards of all packages. It returns them in the order of the numbers of
// their traps.
func load(root string) ([]guard, error) {
	var found []guard
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		name = filepath.ToSlash(name)
		dir, isGuard := strings.CutSuffix(filepath.ToSlash(filepath.Dir(name)), patches)
		if entry.IsDir() || !isGuard {
			return nil
		}
		content, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		g, err := parseGuard(string(content))
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		g.pkg, g.patch = strings.TrimSuffix(dir, "/"), name
		if filepath.ToSlash(filepath.Dir(name)) == rootPatches {
			g.pkg = "."
		}
		found = append(found, g)
		return nil
	})
	slices.SortStableFunc(found, func(a, b guard) int {
		return cmp.Or(cmp.Compare(a.trap, b.trap), strings.Compare(a.patch, b.patch))
	})
	return found, err
}

var (
	header  = regexp.MustCompile(`^Trap: (\d+)\nGuard: (.+)\nTest: (.+)\n\n--- a/`)
	changed = regexp.MustCompile(`(?m)^--- a/(.+)\n\+\+\+ b/(.+)$`)
)

// parseGuard reads the header lines of a patch, and the names of the files that the patch
// changes. patch is the content of the patch.
func parseGuard(patch string) (guard, error) {
	lines := header.FindStringSubmatch(patch)
	if lines == nil {
		return guard{}, fmt.Errorf("must begin with the lines Trap: number, Guard: what it does, Test: pattern, an empty line and --- a/file")
	}
	trap, err := strconv.Atoi(lines[1])
	g := guard{trap: trap, what: lines[2], test: lines[3]}
	for _, names := range changed.FindAllStringSubmatch(patch, -1) {
		if names[1] != names[2] {
			return guard{}, fmt.Errorf("renames %s to %s: a patch must change files only", names[1], names[2])
		}
		g.files = append(g.files, names[1])
	}
	if _, wrong := regexp.Compile(g.test); wrong != nil {
		return guard{}, fmt.Errorf("Test: %w", wrong)
	}
	return g, err
}

// remove copies the files that contain the guard to dir, under the same names, and removes the
// guard from the copies.
func (g guard) remove(ctx context.Context, root, dir string) error {
	for _, name := range g.files {
		content, err := os.ReadFile(filepath.Join(root, name))
		if err != nil {
			return fmt.Errorf("%s: %w", g.patch, err)
		}
		into := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(into), 0o700); err != nil {
			return err
		}
		if err := os.WriteFile(into, content, 0o600); err != nil {
			return err
		}
	}
	// With -C1, only one line of context must match, so a change nearby does not break the
	// patch.
	apply := exec.CommandContext(ctx, "git", "apply", "-C1", filepath.Join(root, g.patch))
	apply.Dir = dir
	apply.Env = append(os.Environ(), "GIT_CEILING_DIRECTORIES="+filepath.Dir(dir)) // dir is not in a repository
	if output, err := apply.CombinedOutput(); err != nil {
		return fmt.Errorf("%s does not apply: %w: %s: write the patch anew from the code as it is now", g.patch, err, bytes.TrimSpace(output))
	}
	return nil
}
