package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"text/tabwriter"
)

// tolerance is the fraction by which a ratio may be worse than in the baseline before it
// is reported. It must be above a tenth, because ratios differ by so much from day to
// day.
const tolerance = 0.15

// readBaseline reads the rows of an earlier run from a file. The key of the map is the id
// of the row.
func readBaseline(path string) (map[string]row, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var rows []row
	if err := json.Unmarshal(text, &rows); err != nil {
		return nil, fmt.Errorf("%s does not contain the rows of a run: %w", path, err)
	}
	byID := make(map[string]row, len(rows))
	for _, r := range rows {
		byID[r.ID] = r
	}
	return byID, nil
}

// change is a row whose ratio is compared with its ratio in the baseline.
type change struct {
	row

	before float64
}

// compare compares the ratios of the rows with those in the baseline. The result all
// contains each row whose ratio refers to the same row as in the baseline. The result
// worse contains the rows in all whose ratio is worse by more than the tolerance. Medians
// are not compared, because they depend on the machine.
func compare(rows []row, baseline map[string]row) (all, worse []change) {
	for _, r := range rows {
		before := baseline[r.ID]
		if r.Of == "" || before.Of != r.Of || before.Ratio <= 0 {
			continue
		}
		c := change{r, before.Ratio}
		all = append(all, c)
		if r.LowerIsBetter && r.Ratio > before.Ratio*(1+tolerance) || !r.LowerIsBetter && r.Ratio < before.Ratio*(1-tolerance) {
			worse = append(worse, c)
		}
	}
	return all, worse
}

func printComparison(w io.Writer, path string, all, worse []change) {
	fmt.Fprintf(w, "\n%d of %d ratios are worse than in %s by more than %.0f %%\n", len(worse), len(all), path, 100*tolerance)
	if len(worse) == 0 {
		return
	}
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "\nid\twhat\tbefore\tnow\tnow/before\t")
	for _, c := range worse {
		fmt.Fprintf(table, "%s\t%s\t%.2f\t%.2f\t%.2f\t\n", c.ID, c.What, c.before, c.Ratio, c.Ratio/c.before)
	}
	_ = table.Flush()
}
