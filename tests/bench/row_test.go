package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/watermill-once/once/internal/test/kit"
)

func of(id string, values ...float64) series {
	return series{id: id, what: "what " + id + " is", unit: perSecond, values: values}
}

func TestMedian(t *testing.T) {
	for want, values := range map[float64][]float64{
		7:   {7},
		2:   {3, 1, 2},
		2.5: {4, 1, 3, 2},
		5:   {5, 100, 1, 2, 9},
	} {
		if got := of("a", values...).median(); got != want {
			t.Errorf("%v: %v, not %v", values, got, want)
		}
	}
}

func TestRatioIsOfMedians(t *testing.T) {
	r := of("a", 10, 30, 20).against(of("b", 1, 40, 80), 0.4)
	want := row{ID: "a", What: "what a is", Unit: perSecond, Median: 20, Min: 10, Max: 30, Ratio: 0.5, Of: "b", Floor: 0.4}
	if r != want {
		t.Errorf("%+v", r)
	}
}

func TestRowMissesItsLimit(t *testing.T) {
	a, b := of("a", 20), of("b", 40)
	for name, test := range map[string]struct {
		row    row
		missed bool
	}{
		"nothing asked for":     {a.row(), false},
		"ratio without a floor": {a.against(b, 0), false},
		"ratio below":           {a.against(b, 0.51), true},
		"ratio at the floor":    {a.against(b, 0.5), false},
		"median above":          {a.atMost(19), true},
		"median at the limit":   {a.atMost(20), false},
	} {
		if got := test.row.missed(); got != test.missed {
			t.Errorf("%s: %v", name, got)
		}
	}
}

func TestBestHasTheHighestMedian(t *testing.T) {
	if got := best([]series{of("a", 1, 2, 90), of("b", 3, 4, 5), of("c", 3, 3, 3)}); got.id != "b" {
		t.Error(got)
	}
}

func TestTableMarksMissedLimits(t *testing.T) {
	var out bytes.Buffer
	raw := of("raw", 1000)
	printTable(&out, []row{
		raw.row(),
		of("slow", 500).against(raw, 0.85),
		of("fast", 900, 1000).against(raw, 0.85),
		of("late", 3.14159).atMost(3),
		of("early", 2).atMost(3),
	})
	lines := map[string]string{}
	for line := range strings.Lines(out.String()) {
		if fields := strings.Fields(line); len(fields) > 0 {
			lines[fields[0]] = strings.Join(fields[4:], " ") // the columns after "what x is"
		}
	}
	for id, want := range map[string]string{
		"raw":   "1000 1000..1000 msg/s",
		"slow":  "500 500..500 msg/s 0.50 raw >= 0.85 below",
		"fast":  "950 900..1000 msg/s 0.95 raw >= 0.85",
		"late":  "3.14 3.14..3.14 msg/s <= 3.00 above",
		"early": "2.00 2.00..2.00 msg/s <= 3.00",
	} {
		if lines[id] != want {
			t.Errorf("%s: %q, not %q", id, lines[id], want)
		}
	}
}

func TestJSON(t *testing.T) {
	path := filepath.Join(t.TempDir(), "rows.json")
	rows := []row{of("raw", 1, 2, 3).row(), of("a", 1).against(of("raw", 2), 0.85), of("late", 4).atMost(3)}
	kit.OK(t, writeJSON(path, rows))
	content := kit.ReadFile(t, path)
	var got []map[string]any
	kit.OK(t, json.Unmarshal(content, &got))
	want := []map[string]any{
		{"id": "raw", "what": "what raw is", "unit": "msg/s", "median": 2.0, "min": 1.0, "max": 3.0},
		{
			"id": "a", "what": "what a is", "unit": "msg/s", "median": 1.0, "min": 1.0, "max": 1.0,
			"ratio": 0.5, "of": "raw", "floor": 0.85,
		},
		{
			"id": "late", "what": "what late is", "unit": "msg/s", "median": 4.0, "min": 4.0, "max": 4.0,
			"floor": 3.0, "lower_is_better": true,
		},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%s", content)
	}
}

func TestQuantile(t *testing.T) {
	hundred := make([]float64, 100)
	for i := range hundred {
		hundred[i] = float64(i + 1)
	}
	for _, test := range []struct {
		sorted      []float64
		share, want float64
	}{
		{hundred, 0.5, 50},
		{hundred, 0.99, 99},
		{hundred, 1, 100},
		{[]float64{1, 2, 3}, 0.5, 2},
		{[]float64{1, 2, 3}, 0.99, 3},
		{[]float64{5}, 0.5, 5},
	} {
		if got := quantile(test.sorted, test.share); got != test.want {
			t.Errorf("%v of %d: %v, not %v", test.share, len(test.sorted), got, test.want)
		}
	}
}

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
	kit.OK(t, writeJSON(path, before))
	baseline, err := readBaseline(path)
	kit.OK(t, err)
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
	kit.OK(t, err)
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
	kit.OK(t, os.WriteFile(path, []byte("id what median"), 0o600))
	if _, err := readBaseline(path); err == nil || !strings.Contains(err.Error(), path) {
		t.Error(err)
	}
}

// README.md compares the speed of the forwarder with the speed of Watermill's forwarder. The ratios
// in baseline.json must agree.
func TestSpeedInTheReadmeAgreesWithTheBaseline(t *testing.T) {
	rows, err := readBaseline("baseline.json")
	kit.OK(t, err)
	readme := kit.ReadFile(t, "../../README.md")
	const promise = "14 to 21 times slower"
	if !strings.Contains(string(readme), promise) {
		t.Errorf("README.md does not say %q", promise)
	}
	for id, limits := range map[string][2]float64{"drain-quorum-per-stock": {13.5, 21.5}, "drain-classic-per-stock": {7.5, 10.5}} {
		if ratio := rows[id].Ratio; ratio < limits[0] || ratio > limits[1] {
			t.Errorf("%s: %v times as fast, want %v to %v", id, ratio, limits[0], limits[1])
		}
	}
}
