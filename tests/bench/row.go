package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// row is a line of the table. If Of is the ID of another row, Ratio is Median divided by
// the median of that row. Floor limits Ratio, or Median if Of is empty. Floor is the
// minimum or, if LowerIsBetter is true, the maximum. Zero means no limit.
type row struct {
	ID            string  `json:"id"`
	What          string  `json:"what"`
	Unit          string  `json:"unit"`
	Median        float64 `json:"median"`
	Min           float64 `json:"min"`
	Max           float64 `json:"max"`
	Ratio         float64 `json:"ratio,omitempty"`
	Of            string  `json:"of,omitempty"`
	Floor         float64 `json:"floor,omitempty"`
	LowerIsBetter bool    `json:"lower_is_better,omitempty"`
	Cost          *cost   `json:"cost,omitempty"`
}

func (r row) missed() bool {
	figure := r.Median
	if r.Of != "" {
		figure = r.Ratio
	}
	switch {
	case r.Floor == 0:
		return false
	case r.LowerIsBetter:
		return figure > r.Floor
	default:
		return figure < r.Floor
	}
}

// series contains the values of one measurement, one for each run.
type series struct {
	id, what, unit string

	values []float64
	costs  []cost // of the runs that measure their processor time
}

const (
	perSecond    = "msg/s"
	milliseconds = "ms"
	megabytes    = "MB"
)

func (s series) median() float64 {
	sorted := slices.Sorted(slices.Values(s.values))
	middle := len(sorted) / 2
	if len(sorted)%2 == 1 {
		return sorted[middle]
	}
	return (sorted[middle-1] + sorted[middle]) / 2
}

func (s series) row() row {
	return row{
		ID: s.id, What: s.what, Unit: s.unit, Median: s.median(), Min: slices.Min(s.values), Max: slices.Max(s.values),
		Cost: medianCost(s.costs),
	}
}

// against returns the row of the series s. The ratio of the row is the median of s
// divided by the median of other. It should be at least floor.
func (s series) against(other series, floor float64) row {
	r := s.row()
	r.Ratio, r.Of, r.Floor = s.median()/other.median(), other.id, floor
	return r
}

func (s series) againstAtMost(other series, limit float64) row {
	r := s.against(other, limit)
	r.LowerIsBetter = true
	return r
}

func (s series) atMost(limit float64) row {
	r := s.row()
	r.Floor, r.LowerIsBetter = limit, true
	return r
}

func (s series) named(suffix, what string) series {
	s.id += suffix
	s.what = what
	return s
}

func writeJSON(path string, rows []row) error {
	encoded, err := json.MarshalIndent(rows, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(path, append(encoded, '\n'), 0o644)
}

func printTable(w io.Writer, rows []row) {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "\nid\twhat\tmedian\tmin..max\tunit\tratio\tof\tµs pg/broker/go\tasked for\t")
	for _, r := range rows {
		ratio, spent, asked, mark := "", "", "", ""
		if r.Cost != nil {
			spent = r.Cost.String()
		}
		if r.Of != "" {
			ratio = fmt.Sprintf("%.2f", r.Ratio)
		}
		if r.Floor > 0 {
			asked, mark = ">= "+number(r.Floor), "below"
			if r.LowerIsBetter {
				asked, mark = "<= "+number(r.Floor), "above"
			}
			if !r.missed() {
				mark = ""
			}
		}
		fmt.Fprintf(table, "%s\t%s\t%s\t%s..%s\t%s\t%s\t%s\t%s\t%s\t%s\n",
			r.ID, r.What, number(r.Median), number(r.Min), number(r.Max), r.Unit, ratio, r.Of, spent, asked, mark)
	}
	_ = table.Flush()
}

// number formats a value with about three significant digits.
func number(value float64) string {
	switch {
	case value >= 100 || value == 0:
		return fmt.Sprintf("%.0f", value)
	case value >= 10:
		return fmt.Sprintf("%.1f", value)
	default:
		return fmt.Sprintf("%.2f", value)
	}
}

// tolerance is the fraction by which a ratio may be worse than in the baseline before it
// is reported. It must be above a tenth, because ratios differ by so much from day to
// day.
const tolerance = 0.15

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

// machine describes the machine and the servers that the figures depend on.
type machine struct {
	cores    int
	fsync    time.Duration
	postgres string
	settings [3]string // settings of PostgreSQL that decide the cost of a commit
	rabbit   string
	options  options
}

func facts(ctx context.Context, o options) (machine, error) {
	m := machine{cores: runtime.NumCPU(), options: o}
	db, err := open(o.pgDSN)
	if err != nil {
		return m, err
	}
	defer db.Close()
	if err := db.QueryRowContext(ctx, `SHOW server_version`).Scan(&m.postgres); err != nil {
		return m, fmt.Errorf("PostgreSQL: %w", err)
	}
	err = db.QueryRowContext(ctx,
		`SELECT current_setting('fsync'), current_setting('synchronous_commit'), current_setting('shared_buffers')`).
		Scan(&m.settings[0], &m.settings[1], &m.settings[2])
	if err != nil {
		return m, fmt.Errorf("PostgreSQL: %w", err)
	}
	conn, err := amqp.Dial(o.amqpURL)
	if err != nil {
		return m, fmt.Errorf("RabbitMQ: %w", err)
	}
	defer conn.Close()
	m.rabbit, _ = conn.Properties["version"].(string)
	m.fsync, err = fsyncTime()
	return m, err
}

func fsyncTime() (time.Duration, error) {
	f, err := os.CreateTemp("", "once-bench-")
	if err != nil {
		return 0, err
	}
	defer os.Remove(f.Name())
	defer f.Close()
	block := make([]byte, 8192)
	times := make([]time.Duration, 0, 100)
	for range cap(times) {
		start := time.Now()
		if _, err := f.WriteAt(block, 0); err != nil {
			return 0, err
		}
		if err := f.Sync(); err != nil {
			return 0, err
		}
		times = append(times, time.Since(start))
	}
	slices.Sort(times)
	return times[len(times)/2], nil
}

func (m machine) print(w io.Writer) {
	o := m.options
	fmt.Fprintf(w, "%d cores, fsync %v, %s, PostgreSQL %s (fsync %s, synchronous_commit %s, shared_buffers %s), RabbitMQ %s\n",
		m.cores, m.fsync.Round(time.Microsecond), runtime.Version(), m.postgres, m.settings[0], m.settings[1], m.settings[2], m.rabbit)
	fmt.Fprintf(w, "queues: %s; messages: %d bytes, %d headers, persistent; runs in turns: %d, of %d messages (%d if one at a time)\n",
		strings.Join(o.kinds, " and "), bodySize, headerCount, o.runs, o.messages, o.slow)
}
