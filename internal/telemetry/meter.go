// Package telemetry makes the instruments and spans of the library's packages
// alike: names under "once.", attributes of which every value is known in
// advance, series that are there before anything happens.
//
// It knows the OpenTelemetry API alone. Providers that were not configured are
// the global ones, which do nothing until the user sets others.
package telemetry

import (
	"context"
	"slices"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
)

const scope = "github.com/watermill-once/once/"

// Meter makes the instruments of one package.
type Meter struct{ metric.Meter }

// NewMeter returns the meter for a package of ours. A nil provider is the
// global one.
func NewMeter(provider metric.MeterProvider, pkg string) Meter {
	if provider == nil {
		provider = otel.GetMeterProvider()
	}
	return Meter{provider.Meter(scope + pkg)}
}

// Label is an attribute and all the values that it can have.
type Label struct {
	Key    string
	Values []string
}

// series returns a set of attributes for every combination of values, the last
// label's changing first.
func series(labels []Label) []attribute.Set {
	combinations := [][]attribute.KeyValue{nil}
	for _, label := range labels {
		var longer [][]attribute.KeyValue
		for _, c := range combinations {
			for _, value := range label.Values {
				longer = append(longer, append(slices.Clip(c), attribute.String(label.Key, value)))
			}
		}
		combinations = longer
	}
	sets := make([]attribute.Set, len(combinations))
	for i, c := range combinations {
		sets[i] = attribute.NewSet(c...)
	}
	return sets
}

// Counter counts in series that are known in advance, by their number: that of
// the first label's value times those of the labels behind it, and so on.
type Counter struct {
	counter metric.Int64Counter
	series  [][]metric.AddOption
}

// Counter makes one. Its series are there when [Counter.Zero] was called.
func (m Meter) Counter(name, unit, description string, labels ...Label) *Counter {
	counter, err := m.Int64Counter(name, metric.WithUnit(unit), metric.WithDescription(description))
	handle(err)
	c := &Counter{counter: counter}
	for _, set := range series(labels) {
		c.series = append(c.series, []metric.AddOption{metric.WithAttributeSet(set)})
	}
	return c
}

// Series is how many there are.
func (c *Counter) Series() int { return len(c.series) }

// Zero has every series show up with 0.
func (c *Counter) Zero() {
	for series := range c.series {
		c.Add(0, series)
	}
}

// Add adds n to a series. It allocates nothing.
func (c *Counter) Add(n int64, series int) {
	c.counter.Add(context.Background(), n, c.series[series]...)
}

// Durations is a histogram of seconds. Its series show up with what is recorded
// first: a duration that nothing took would be a lie.
type Durations struct {
	histogram metric.Float64Histogram
	series    [][]metric.RecordOption
}

// Durations makes one.
func (m Meter) Durations(name, description string, labels ...Label) *Durations {
	histogram, err := m.Float64Histogram(name, metric.WithUnit("s"), metric.WithDescription(description),
		metric.WithExplicitBucketBoundaries(0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60))
	handle(err)
	d := &Durations{histogram: histogram}
	for _, set := range series(labels) {
		d.series = append(d.series, []metric.RecordOption{metric.WithAttributeSet(set)})
	}
	return d
}

// Enabled says whether anybody wants them: ask it before a loop that records.
func (d *Durations) Enabled() bool { return d.histogram.Enabled(context.Background()) }

// Record records one duration. It allocates nothing.
func (d *Durations) Record(took time.Duration, series int) {
	d.histogram.Record(context.Background(), took.Seconds(), d.series[series]...)
}

// Sizes is a histogram of numbers up to about a thousand. Its series show up
// with what is recorded first.
type Sizes struct {
	histogram metric.Int64Histogram
	series    [][]metric.RecordOption
}

// Sizes makes one.
func (m Meter) Sizes(name, unit, description string, labels ...Label) *Sizes {
	histogram, err := m.Int64Histogram(name, metric.WithUnit(unit), metric.WithDescription(description),
		metric.WithExplicitBucketBoundaries(1, 2, 5, 10, 20, 50, 100, 200, 500, 1000))
	handle(err)
	s := &Sizes{histogram: histogram}
	for _, set := range series(labels) {
		s.series = append(s.series, []metric.RecordOption{metric.WithAttributeSet(set)})
	}
	return s
}

// Record records one size. It allocates nothing.
func (s *Sizes) Record(size, series int) {
	s.histogram.Record(context.Background(), int64(size), s.series[series]...)
}

// Gauge makes a gauge that is observed when somebody looks.
func (m Meter) Gauge(name, unit, description string) metric.Int64Observable {
	gauge, err := m.Int64ObservableGauge(name, metric.WithUnit(unit), metric.WithDescription(description))
	handle(err)
	return gauge
}

// Level makes a gauge whose values can be added up over instances.
func (m Meter) Level(name, unit, description string) metric.Int64Observable {
	level, err := m.Int64ObservableUpDownCounter(name, metric.WithUnit(unit), metric.WithDescription(description))
	handle(err)
	return level
}

// SecondsGauge makes a gauge of seconds.
func (m Meter) SecondsGauge(name, description string) metric.Float64Observable {
	gauge, err := m.Float64ObservableGauge(name, metric.WithUnit("s"), metric.WithDescription(description))
	handle(err)
	return gauge
}

// Observe has observe called when somebody looks at the instruments, until the
// returned function is called.
func (m Meter) Observe(observe metric.Callback, instruments ...metric.Observable) (end func()) {
	registration, err := m.RegisterCallback(observe, instruments...)
	if err != nil {
		handle(err)
		return func() {}
	}
	return func() { handle(registration.Unregister()) }
}

// handle gives an error to whoever the user has chosen for errors of
// telemetry: none of them is a reason not to do the work.
func handle(err error) {
	if err != nil {
		otel.Handle(err)
	}
}
