package servers

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
)

// ErrNotInstalled reports that the binaries of a server were not found.
var ErrNotInstalled = errors.New("not installed (scripts/deps.sh installs it)")

// findDir returns a directory that contains all named binaries. If binDir is not "",
// findDir tries only this directory. Otherwise it tries the given places in their
// order. A place is "$PATH" or a file pattern. For a pattern, findDir tries the newest
// version first.
func findDir(binDir string, places []string, names ...string) (string, error) {
	dirs := []string{binDir}
	if binDir == "" {
		dirs = nil
		for _, place := range places {
			dirs = append(dirs, directories(place, names[0])...)
		}
	}
	for _, dir := range dirs {
		if !slices.ContainsFunc(names, func(name string) bool { return !executable(filepath.Join(dir, name)) }) {
			return dir, nil
		}
	}
	return "", fmt.Errorf("%s: %w", names[0], ErrNotInstalled)
}

func directories(place, name string) []string {
	if place == "$PATH" {
		found, err := exec.LookPath(name)
		if err != nil {
			return nil
		}
		return []string{filepath.Dir(found)}
	}
	found, _ := filepath.Glob(place) // Glob fails only if the pattern is invalid
	slices.SortFunc(found, func(a, b string) int { return cmp.Compare(version(b), version(a)) })
	return found
}

var number = regexp.MustCompile(`\d+`)

// version returns the first number in a path. So .../postgresql/16/bin counts as newer
// than .../postgresql/9.6/bin.
func version(path string) int {
	n, _ := strconv.Atoi(number.FindString(path))
	return n
}

func executable(name string) bool {
	info, err := os.Stat(name)
	return err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0
}
