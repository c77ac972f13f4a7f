package main

import (
	"fmt"
	"slices"
	"testing"
)

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
	seen := make(map[string]bool)
	for _, f := range faults() {
		if f.name == "" || f.about == "" || f.on == "" || f.strike == nil || seen[f.name] {
			t.Errorf("%+v", f)
		}
		seen[f.name] = true
	}
}
