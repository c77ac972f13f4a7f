package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
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
	o, err = parse(strings.Fields("-seed 5 -messages 10 -bites 2 -old " + old + " -duration 2h -pace 1s " +
		"-only duplicates,writer-kill -plant inbox,order -json f"))
	if err != nil || o.seed != 5 || o.messages != 10 || o.bites != 2 || o.old != old || o.duration != 2*time.Hour || o.pace != time.Second ||
		len(o.faults) != 2 || o.json != "f" ||
		!(life{Plant: o.plant}).planted(plantOrder) || (life{Plant: o.plant}).planted(plantOutbox) {
		t.Errorf("%v, %v", o, err)
	}
	o, err = parse(strings.Fields("-cluster 3 -only leader-kill,writer-kill"))
	if err != nil || o.cluster != 3 || len(o.faults) != 2 {
		t.Errorf("%v, %v", o, err)
	}
	if _, err := parse(strings.Fields("-cluster 3 -only broker-kill")); err == nil { // there is not one broker
		t.Error("a fault of another mode is accepted")
	}
	if _, err := parse([]string{"-help"}); !errors.Is(err, flag.ErrHelp) {
		t.Error(err)
	}
}

func TestEveryInvalidOptionIsNamed(t *testing.T) {
	_, err := parse(strings.Fields("-messages 0 -bites 0 -old /nowhere/at/all -duration -1s -pace -1s -quorum -cluster 2 " +
		"-only nothing -plant nowhere more"))
	if !errors.Is(err, errUsage) {
		t.Fatal(err)
	}
	for _, wrong := range []string{
		"-messages", "-bites", "-old", "-duration", "-pace", "-quorum", "-cluster is 2", "-cluster: must not", `"nothing"`, `"nowhere"`, `"more"`,
	} {
		if !strings.Contains(err.Error(), wrong) {
			t.Errorf("%s is not in: %v", wrong, err)
		}
	}
}

// steps returns the first n steps of a plan as text.
func steps(seed uint64, faults []fault, n int) (list []string) {
	for s := range plan(seed, faults) {
		line := ""
		for i, f := range s.faults {
			line += fmt.Sprint(f.name, " ", s.seeds[i], ";")
		}
		if list = append(list, line); len(list) == n {
			break
		}
	}
	return list
}

func TestASeedReplaysItsPlan(t *testing.T) {
	all := faults()
	if !slices.Equal(steps(7, all, 300), steps(7, all, 300)) {
		t.Error("the same seed gives different plans")
	}
	if slices.Equal(steps(7, all, 10), steps(8, all, 10)) {
		t.Error("two seeds give the same plan")
	}
}

func TestAPlanHasEveryFaultAloneAndThenPairs(t *testing.T) {
	all := faults()
	if len(all) < 36 {
		t.Errorf("%d kinds of fault", len(all))
	}
	seen := make(map[string]int)
	n, pairs := 0, 0
	for s := range plan(1, all) {
		if n++; n <= len(all) && len(s.faults) != 1 {
			t.Fatalf("step %d has %d faults", n, len(s.faults))
		}
		for _, f := range s.faults {
			seen[f.name]++
			if f.alone && len(s.faults) > 1 {
				t.Errorf("%s is combined with another fault", f.name)
			}
		}
		if len(s.faults) == 2 {
			pairs++
			if s.faults[0].on == s.faults[1].on {
				t.Errorf("%s and %s have the same target", s.faults[0].name, s.faults[1].name)
			}
		}
		if n == len(all) {
			for _, f := range all {
				if seen[f.name] != 1 {
					t.Errorf("%s occurs %d times in the first round", f.name, seen[f.name])
				}
			}
		}
		if n == 3*len(all) {
			break
		}
	}
	if pairs == 0 {
		t.Error("no step has two faults")
	}
}

func TestFaultsAreCompleteAndHaveUniqueNames(t *testing.T) {
	for _, all := range [][]fault{faults(), clusterFaults()} {
		seen := make(map[string]bool)
		for _, f := range all {
			if f.name == "" || f.about == "" || f.on == "" || f.strike == nil || seen[f.name] {
				t.Errorf("%+v", f)
			}
			seen[f.name] = true
		}
	}
}
