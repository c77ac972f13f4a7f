// Package observability compares the metrics, spans and logs of the library
// with docs/observability.md.
package observability

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	"go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/watermill-once/once/internal/testkit"
)

func TestMain(m *testing.M) { testkit.MainWithTables(m) }

// watch records metrics, spans and logs.
type watch struct {
	*testing.T

	reader *metric.ManualReader
	meters *metric.MeterProvider
	spans  *tracetest.InMemoryExporter
	traces *trace.TracerProvider
	logs   testkit.Logs
}

func newWatch(t *testing.T) *watch {
	t.Helper()
	w := &watch{T: t, reader: metric.NewManualReader(), spans: tracetest.NewInMemoryExporter()}
	w.meters = metric.NewMeterProvider(metric.WithReader(w.reader))
	w.traces = trace.NewTracerProvider(trace.WithSyncer(w.spans))
	return w
}

// instrument is an exported instrument.
type instrument struct {
	kind, unit, description string
	series                  map[string]float64 // by attributes; for a histogram the number of values
	attributes              map[string][]string
}

// instruments returns the instruments of this library, by name.
func (w *watch) instruments() map[string]*instrument {
	w.Helper()
	var all metricdata.ResourceMetrics
	if err := w.reader.Collect(w.Context(), &all); err != nil {
		w.Fatal(err)
	}
	found := map[string]*instrument{}
	for _, scope := range all.ScopeMetrics {
		if !strings.HasPrefix(scope.Scope.Name, "github.com/watermill-once/once/") {
			w.Errorf("a scope named %s", scope.Scope.Name)
		}
		for _, m := range scope.Metrics {
			found[m.Name] = read(m)
		}
	}
	return found
}

func read(m metricdata.Metrics) *instrument {
	i := &instrument{unit: m.Unit, description: m.Description, series: map[string]float64{}, attributes: map[string][]string{}}
	switch data := m.Data.(type) {
	case metricdata.Sum[int64]:
		i.kind = "updowncounter"
		if data.IsMonotonic {
			i.kind = "counter"
		}
		for _, point := range data.DataPoints {
			i.add(point.Attributes, float64(point.Value))
		}
	case metricdata.Gauge[int64]:
		i.kind = "gauge"
		for _, point := range data.DataPoints {
			i.add(point.Attributes, float64(point.Value))
		}
	case metricdata.Gauge[float64]:
		i.kind = "gauge"
		for _, point := range data.DataPoints {
			i.add(point.Attributes, point.Value)
		}
	case metricdata.Histogram[float64]:
		i.kind = "histogram"
		for _, point := range data.DataPoints {
			i.add(point.Attributes, float64(point.Count))
		}
	case metricdata.Histogram[int64]:
		i.kind = "histogram"
		for _, point := range data.DataPoints {
			i.add(point.Attributes, float64(point.Count))
		}
	default:
		i.kind = fmt.Sprintf("%T", data)
	}
	return i
}

func (i *instrument) add(set attribute.Set, value float64) {
	i.series[series(set.ToSlice()...)] += value
	for _, a := range set.ToSlice() {
		if key, value := string(a.Key), a.Value.AsString(); !slices.Contains(i.attributes[key], value) {
			i.attributes[key] = append(i.attributes[key], value)
		}
	}
}

// series returns the name of a series, such as "once.outcome=stored".
func series(attributes ...attribute.KeyValue) string {
	var names []string
	for _, a := range attributes {
		names = append(names, string(a.Key)+"="+a.Value.AsString())
	}
	return strings.Join(names, " ")
}

// value returns the value of a series, or -1 if it does not exist.
func (w *watch) value(name, series string) float64 {
	w.Helper()
	if i := w.instruments()[name]; i != nil {
		if value, ok := i.series[series]; ok {
			return value
		}
	}
	return -1
}

// awaitValue waits until the value of a series is at least minimum.
func (w *watch) awaitValue(minimum float64, name, series string) {
	w.Helper()
	w.eventually(fmt.Sprintf("%s{%s} is %v or more", name, series, minimum), func() bool { return w.value(name, series) >= minimum })
}

func (w *watch) eventually(what string, condition func() bool) {
	w.Helper()
	testkit.Eventually(w.T, time.Minute, what, condition)
}
