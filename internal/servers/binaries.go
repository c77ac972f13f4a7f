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

// ErrNotInstalled is in the error when the binaries of a server are missing.
var ErrNotInstalled = errors.New("not installed (scripts/deps.sh installs it)")

// findDir returns the directory that holds all the named binaries: the one
// asked for, or the first of the places that does. A place is a pattern, of
// whose matches the newest comes first, or "$PATH".
func findDir(asked string, places []string, names ...string) (string, error) {
	dirs := []string{asked}
	if asked == "" {
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
	found, _ := filepath.Glob(place) // the patterns are right
	slices.SortFunc(found, func(a, b string) int { return cmp.Compare(version(b), version(a)) })
	return found
}

var number = regexp.MustCompile(`\d+`)

// version is the first number in a path: .../postgresql/16/bin is newer than
// .../postgresql/9.6/bin.
func version(path string) int {
	n, _ := strconv.Atoi(number.FindString(path))
	return n
}

func executable(name string) bool {
	info, err := os.Stat(name)
	return err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0
}
