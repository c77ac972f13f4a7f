package main

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"maps"
	"os"
	"runtime"
	"sync"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
)

// beat is the status that a process reports several times per second. If a process sends
// no beats, it is frozen.
type beat struct {
	Counts     map[string]int64 `json:"counts"`
	Goroutines int              `json:"goroutines"`
	Files      int              `json:"files"`
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
	b := beat{Counts: make(map[string]int64), Goroutines: runtime.NumGoroutine(), Files: openFiles()}
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

// openFiles returns the number of open file descriptors, or 0 if the system does not
// show them.
func openFiles() int {
	for _, dir := range []string{"/proc/self/fd", "/dev/fd"} {
		if files, err := os.ReadDir(dir); err == nil {
			return len(files)
		}
	}
	return 0
}
