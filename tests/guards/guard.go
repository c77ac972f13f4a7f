package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// guard is what keeps the code out of a trap.
type guard struct {
	trap int
	what string // in a few words

	file    string // from the root of the repository
	guard   string // the text in it, which is there once
	without string // what stands there instead

	pkg  string // that has the test, from the root of the repository
	test string // part of its name; if empty, all tests whose names begin with TestTrap and the number
}

func guards() []guard {
	return slices.Concat(forwarderGuards(), rabbitGuards(), consumerGuards(), orderGuards(), startGuards(), handlerGuards())
}

// run is the pattern of the tests that must go red: one of them is enough.
func (g guard) run() string {
	if g.test != "" {
		return g.test
	}
	return fmt.Sprintf("^TestTrap%02d", g.trap)
}

// open returns the file without the guard.
func (g guard) open(root string) ([]byte, error) {
	content, err := os.ReadFile(filepath.Join(root, g.file))
	if err != nil {
		return nil, err
	}
	if n := strings.Count(string(content), g.guard); n != 1 {
		return nil, fmt.Errorf("trap %d: the guard (%s) is %d times in %s, not once", g.trap, g.what, n, g.file)
	}
	return []byte(strings.Replace(string(content), g.guard, g.without, 1)), nil
}
