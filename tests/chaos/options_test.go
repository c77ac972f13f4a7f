package main

import (
	"errors"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestOptions(t *testing.T) {
	o, err := parse(nil)
	if err != nil || o.messages != 200_000 || o.bites != 3 || o.duration != 0 || len(o.faults) != len(faults()) || o.seed == 0 {
		t.Errorf("%v, %v", o, err)
	}
	old := filepath.Join(t.TempDir(), "old")
	if err := os.WriteFile(old, []byte("#!/bin/sh\necho chaos $1\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	o, err = parse(strings.Fields("-seed 5 -messages 10 -bites 2 -old " + old + " -duration 2h " +
		"-only duplicates,writer-kill -plant inbox,order -json f"))
	if err != nil || o.seed != 5 || o.messages != 10 || o.bites != 2 || o.old != old || o.duration != 2*time.Hour ||
		len(o.faults) != 2 || o.json != "f" ||
		!(life{Plant: o.plant}).planted(plantOrder) || (life{Plant: o.plant}).planted(plantOutbox) {
		t.Errorf("%v, %v", o, err)
	}
	if _, err := parse([]string{"-help"}); !errors.Is(err, flag.ErrHelp) {
		t.Error(err)
	}
}

func TestEveryInvalidOptionIsNamed(t *testing.T) {
	_, err := parse(strings.Fields("-messages 0 -bites 0 -old /nowhere/at/all -duration -1s -only nothing -plant nowhere more"))
	if !errors.Is(err, errUsage) {
		t.Fatal(err)
	}
	for _, wrong := range []string{"-messages", "-bites", "-old", "-duration", `"nothing"`, `"nowhere"`, `"more"`} {
		if !strings.Contains(err.Error(), wrong) {
			t.Errorf("%s is not in: %v", wrong, err)
		}
	}
}
