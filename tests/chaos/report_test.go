package main

import (
	"strings"
	"testing"
)

// bitten returns the report of a run that passes.
func bitten() *report {
	return &report{Asked: 10, Bites: 1, Messages: 12, Rows: []*row{
		{Kind: "a", Injected: 2, Bitten: 2}, {Kind: "b", Injected: 2, Bitten: 1}, {Kind: "c", Unavailable: true},
	}}
}

func TestLastLineOfTheReportHasTheTotals(t *testing.T) {
	r := bitten()
	r.totals = totals{Lost: 1, Doubled: 2, Phantoms: 3, Inversions: 4}
	var out strings.Builder
	r.print(&out)
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	if got, want := lines[len(lines)-1], "messages=12 kinds=2 bites=3 lost=1 doubled=2 phantoms=3 inversions=4"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

func TestRunFailsForEachBrokenPromise(t *testing.T) {
	for name, change := range map[string]func(r *report){
		"lost":       func(r *report) { r.Lost++ },
		"doubled":    func(r *report) { r.Doubled++ },
		"phantom":    func(r *report) { r.Phantoms++ },
		"inversion":  func(r *report) { r.Inversions++ },
		"no bite":    func(r *report) { r.Rows[0].Bitten = 0 },
		"too few":    func(r *report) { r.Messages = 9 },
		"other":      func(r *report) { r.wrongf("a row is left") },
		"":           func(*report) {},
		"never came": func(r *report) { r.Rows = append(r.Rows, &row{Kind: "d"}) },
	} {
		r := bitten()
		change(r)
		r.judge()
		if r.passed() != (name == "") {
			t.Errorf("%q: passed is %v", name, r.passed())
		}
	}
}

func TestRowCoversUnfinishedEvents(t *testing.T) {
	r := row{spans: []span{{20_000, 20_100}}}
	for serial, want := range map[int64]bool{20_000 - underWay - 1: false, 20_000 - underWay: true, 20_100: true, 20_101: false} {
		if r.covers(serial) != want {
			t.Errorf("%d: %v", serial, !want)
		}
	}
}
