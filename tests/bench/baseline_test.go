package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A ratio is reported if it got worse by more than the tolerance. It is compared only if the
// baseline compares the same two rows.
func TestWorseRatiosAreReported(t *testing.T) {
	ratio := func(id, of string, ratio float64, lower bool) row {
		return row{ID: id, What: "what " + id + " is", Median: 1, Ratio: ratio, Of: of, LowerIsBetter: lower}
	}
	path := filepath.Join(t.TempDir(), "baseline.json")
	before := []row{
		ratio("slower", "raw", 0.8, false), ratio("noisy", "raw", 0.8, false), ratio("faster", "raw", 0.8, false),
		ratio("other", "bare", 0.8, false), ratio("delayed", "alone", 2, true), ratio("sooner", "alone", 2, true),
		{ID: "absolute", Median: 100},
		ratio("gone", "raw", 1, false),
	}
	if err := writeJSON(path, before); err != nil {
		t.Fatal(err)
	}
	baseline, err := readBaseline(path)
	if err != nil {
		t.Fatal(err)
	}
	all, worse := compare([]row{
		ratio("slower", "raw", 0.6, false), ratio("noisy", "raw", 0.7, false), ratio("faster", "raw", 1.8, false),
		ratio("other", "raw", 0.1, false), ratio("delayed", "alone", 2.5, true), ratio("sooner", "alone", 0.5, true),
		{ID: "absolute", Median: 1},
		ratio("new", "raw", 0.1, false),
	}, baseline)
	if len(all) != 5 || len(worse) != 2 || worse[0].ID != "slower" || worse[1].ID != "delayed" {
		t.Errorf("compared %+v, worse %+v", all, worse)
	}
	var out bytes.Buffer
	printComparison(&out, path, all, worse)
	for _, part := range []string{"2 of 5 ratios are worse", "what slower is", "0.80", "0.60", "0.75", "1.25"} {
		if !strings.Contains(out.String(), part) {
			t.Errorf("%q is missing in\n%s", part, out.String())
		}
	}
}

// The file baseline.json can be read, and each of its ratios refers to a row in the file.
func TestCommittedBaselineIsValid(t *testing.T) {
	rows, err := readBaseline("baseline.json")
	if err != nil {
		t.Fatal(err)
	}
	if len(rows) == 0 {
		t.Error("baseline.json is empty")
	}
	for id, r := range rows {
		if _, known := rows[r.Of]; r.Of != "" && !known {
			t.Errorf("%s is compared with %q, which is missing", id, r.Of)
		}
	}
}

func TestFileThatIsNoBaselineIsRefused(t *testing.T) {
	path := filepath.Join(t.TempDir(), "rows.json")
	if err := os.WriteFile(path, []byte("id what median"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := readBaseline(path); err == nil || !strings.Contains(err.Error(), path) {
		t.Error(err)
	}
}

// README.md compares the speed of the forwarder with the speed of Watermill's forwarder. The ratios
// in baseline.json must agree.
func TestSpeedInTheReadmeAgreesWithTheBaseline(t *testing.T) {
	rows, err := readBaseline("baseline.json")
	if err != nil {
		t.Fatal(err)
	}
	readme, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	const promise = "14 to 21 times as fast as Watermill's forwarder if the queues are quorum queues, " +
		"and 8 to 10 times as fast if they are classic queues"
	if !strings.Contains(string(readme), promise) {
		t.Errorf("README.md does not say %q", promise)
	}
	for id, limits := range map[string][2]float64{"drain-quorum-per-stock": {13.5, 21.5}, "drain-classic-per-stock": {7.5, 10.5}} {
		if ratio := rows[id].Ratio; ratio < limits[0] || ratio > limits[1] {
			t.Errorf("%s: %v times as fast, want %v to %v", id, ratio, limits[0], limits[1])
		}
	}
}
