package main

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"text/tabwriter"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
)

// row contains the results of one kind of fault. The field Bitten is the number of
// injections that had an effect.
type row struct {
	Kind        string `json:"kind"`
	Injected    int    `json:"injected"`
	Bitten      int    `json:"bitten"`
	InFlight    int64  `json:"in_flight"` // highest backlog when the fault was injected
	Proof       string `json:"proof"`     // of the latest injection
	Unavailable bool   `json:"unavailable,omitempty"`

	// Lost and Doubled count messages that were written or unfinished while the fault
	// was active. A message may be counted for several kinds.
	Lost    int `json:"lost"`
	Doubled int `json:"doubled"`

	// During and After are the longest silences of all injections: until the fault was undone, and from
	// then on until everything worked again. They are measured in a cluster.
	During silence `json:"during"`
	After  silence `json:"after"`

	Took   time.Duration `json:"took"`   // of all injections together
	Missed time.Duration `json:"missed"` // of the injections without an effect

	spans []span
}

// span is a range of serial numbers: of the events that were written while a fault was
// active. Events that were still unfinished when the fault began have lower numbers.
type span struct{ from, to int64 }

// underWay is how many of the events before a span count as possibly unfinished when the
// fault began.
const underWay = mostWaiting

func (r *row) covers(serial int64) bool {
	return slices.ContainsFunc(r.spans, func(s span) bool { return s.from-underWay <= serial && serial <= s.to })
}

// report contains the results of a run.
type report struct {
	Seed     uint64 `json:"seed"`
	Asked    int    `json:"asked"` // requested number of messages
	Bites    int    `json:"bites"` // requested number of effective injections of each kind
	Rows     []*row `json:"rows"`
	Messages int    `json:"messages"`

	// Phases are the parts of the run, in their order.
	Phases []phase `json:"phases"`

	totals

	// Faults describes everything that is wrong and is not in totals.
	Faults []string `json:"faults"`

	// Notes contains remarks that do not make the run fail.
	Notes []string `json:"notes"`

	// Samples are there if a plot was asked for.
	Samples []sample `json:"samples,omitempty"`

	servers string // names and versions
}

// phase is a part of the run, such as the wait for the last messages.
type phase struct {
	Name string        `json:"name"`
	Took time.Duration `json:"took"`
}

// began returns a function. When the phase has ended, the returned function adds it to the report.
func (r *report) began(name string) (ended func()) {
	at := time.Now()
	return func() { r.Phases = append(r.Phases, phase{name, time.Since(at)}) }
}

// shownKinds is the number of kinds whose duration is printed.
const shownKinds = 5

// printTimes prints the duration of each phase and of the kinds that took longest. Two
// injections can run at the same time, so their sum can be longer than the phase.
func (r *report) printTimes(out io.Writer) {
	for _, p := range r.Phases {
		fmt.Fprintf(out, "%s took %v\n", p.Name, p.Took.Round(time.Second))
	}
	rows := slices.Clone(r.Rows)
	slices.SortStableFunc(rows, func(a, b *row) int { return cmp.Compare(b.Took, a.Took) })
	injected, missed, longest := 0, time.Duration(0), []string{}
	for i, row := range rows {
		injected += row.Injected
		missed += row.Missed
		if i < shownKinds && row.Took > 0 {
			longest = append(longest, fmt.Sprintf("%s %v", row.Kind, row.Took.Round(time.Second)))
		}
	}
	if injected > 0 {
		fmt.Fprintf(out, "%d injections, those without an effect took %v; the longest kinds: %s\n",
			injected, missed.Round(time.Second), strings.Join(longest, ", "))
	}
}

// totals counts messages that broke a promise. Each number must be zero.
type totals struct {
	Lost       int `json:"lost"`
	Doubled    int `json:"doubled"`
	Phantoms   int `json:"phantoms"`
	Inversions int `json:"inversions"`
}

func newReport(o options) *report {
	r := &report{Seed: o.seed, Asked: o.messages, Bites: o.bites}
	for _, f := range o.faults {
		r.Rows = append(r.Rows, &row{Kind: f.name})
	}
	return r
}

func (r *report) empty() bool { return r == nil || r.Messages == 0 }

func (r *report) row(kind string) *row {
	for _, row := range r.Rows {
		if row.Kind == kind {
			return row
		}
	}
	return nil
}

func (r *report) wrongf(format string, args ...any) {
	r.Faults = append(r.Faults, fmt.Sprintf(format, args...))
}

func (r *report) notef(format string, args ...any) {
	r.Notes = append(r.Notes, fmt.Sprintf(format, args...))
}

// judge adds an entry to the field Faults for each kind with too few effective
// injections, and another entry if too few messages were written.
func (r *report) judge() {
	for _, row := range r.Rows {
		if row.Bitten < r.Bites && !row.Unavailable {
			r.wrongf("%s bit %d times, %d were asked for", row.Kind, row.Bitten, r.Bites)
		}
	}
	if r.Messages < r.Asked {
		r.wrongf("%d messages, %d were asked for", r.Messages, r.Asked)
	}
}

func (r *report) passed() bool { return r.totals == totals{} && len(r.Faults) == 0 }

// bites returns the number of kinds of faults that had an effect, and the number of all
// injections that had an effect.
func (r *report) bites() (kinds, bites int) {
	for _, row := range r.Rows {
		kinds += min(row.Bitten, 1)
		bites += row.Bitten
	}
	return kinds, bites
}

func (r *report) print(out io.Writer) {
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "fault\tinjected\tbitten\tin flight\tlost\tdoubled\tseen last")
	for _, row := range r.Rows {
		fmt.Fprintf(table, "%s\t%d\t%d\t%d\t%d\t%d\t%s\n", row.Kind, row.Injected, row.Bitten, row.InFlight, row.Lost, row.Doubled, row.Proof)
	}
	_ = table.Flush()
	r.printSilences(out)
	fmt.Fprintf(out, "\nseed %d\n", r.Seed)
	r.printTimes(out)
	for _, note := range r.Notes {
		fmt.Fprintln(out, note)
	}
	for _, fault := range r.Faults {
		fmt.Fprintln(out, "WRONG:", fault)
	}
	fmt.Fprintln(out, r.verdict())
}

// verdict is the last line of the output.
func (r *report) verdict() string {
	kinds, bites := r.bites()
	return fmt.Sprintf("messages=%d kinds=%d bites=%d lost=%d doubled=%d phantoms=%d inversions=%d",
		r.Messages, kinds, bites, r.Lost, r.Doubled, r.Phantoms, r.Inversions)
}

func (r *report) write(name string) error {
	content, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(name, append(content, '\n'), 0o600)
}

// beat is the status that a process reports several times per second. If a process sends
// no beats, it is frozen.
type beat struct {
	Counts     map[string]int64 `json:"counts"`
	Goroutines int              `json:"goroutines"`
	Files      int              `json:"files"`
	Memory     int64            `json:"memory"` // resident, in bytes
}

const beatEvery = 200 * time.Millisecond

// tally counts the events of a process. The events of the library are counted under the
// names of the library's OpenTelemetry instruments.
type tally struct {
	mu     sync.Mutex
	counts map[string]int64

	reader *metric.ManualReader
	meters *metric.MeterProvider
}

func newTally() *tally {
	reader := metric.NewManualReader()
	return &tally{
		counts: make(map[string]int64),
		reader: reader, meters: metric.NewMeterProvider(metric.WithReader(reader)),
	}
}

func (t *tally) add(name string, n int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.counts[name] += n
}

// report writes beats until a write fails. This means that the test process has closed
// the pipe.
func (t *tally) report(w io.Writer) {
	out := bufio.NewWriter(w)
	tick := time.NewTicker(beatEvery)
	defer tick.Stop()
	for range tick.C {
		if json.NewEncoder(out).Encode(t.beat()) != nil || out.Flush() != nil {
			return
		}
	}
}

func (t *tally) beat() beat {
	b := beat{Counts: make(map[string]int64), Goroutines: runtime.NumGoroutine(), Files: openFiles(), Memory: memory()}
	t.mu.Lock()
	maps.Copy(b.Counts, t.counts)
	t.mu.Unlock()
	var data metricdata.ResourceMetrics
	if t.reader.Collect(context.Background(), &data) != nil {
		return b
	}
	for _, scope := range data.ScopeMetrics {
		for _, m := range scope.Metrics {
			sum, ok := m.Data.(metricdata.Sum[int64])
			if !ok {
				continue
			}
			for _, point := range sum.DataPoints {
				b.Counts[series(m.Name, point.Attributes)] += point.Value
			}
		}
	}
	return b
}

// series returns the name under which a value is counted: the name of the instrument,
// followed by the outcome or the reason if there is one.
func series(name string, attributes attribute.Set) string {
	for _, key := range []attribute.Key{"once.outcome", "once.reason"} {
		if value, ok := attributes.Value(key); ok {
			return name + "/" + value.AsString()
		}
	}
	return name
}

// memory returns the resident memory of this process in bytes, and zero if this is not Linux.
func memory() int64 {
	statm, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		return 0
	}
	var size, resident int64
	_, _ = fmt.Sscan(string(statm), &size, &resident)
	return resident * int64(os.Getpagesize())
}

func openFiles() int {
	for _, dir := range []string{"/proc/self/fd", "/dev/fd"} {
		if files, err := os.ReadDir(dir); err == nil {
			return len(files)
		}
	}
	return 0
}
