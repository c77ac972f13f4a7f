// Package telemetry creates the metrics and spans of the library's packages. All metrics whose
// names begin with "once." follow the same rules: every value of an attribute is known in advance,
// and counters show their series before the first event. Those that begin with "messaging." follow
// OpenTelemetry's semantic conventions.
//
// The package uses only the OpenTelemetry API. It defaults to the global providers,
// which do nothing until the user sets others.
package telemetry

import (
	"context"
	"slices"
	"sync"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
)

const scope = "github.com/watermill-once/once/"

// Meter creates the metrics of one package.
type Meter struct{ metric.Meter }

// NewMeter returns the meter of a package of this module. A nil provider means the global provider.
func NewMeter(provider metric.MeterProvider, pkg string) Meter {
	if provider == nil {
		provider = otel.GetMeterProvider()
	}
	return Meter{provider.Meter(scope+pkg, metric.WithSchemaURL(schemaURL))}
}

// Label is an attribute with all its possible values.
type Label struct {
	Key    string
	Values []string
}

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

// Counter counts events in one series for every combination of label values, numbered from 0. The
// value of the last label changes fastest.
type Counter struct {
	counter metric.Int64Counter
	series  [][]metric.AddOption
}

// Counter returns a new counter. Call [Counter.Zero] to show all its series.
func (m Meter) Counter(name, unit, description string, labels ...Label) *Counter {
	counter, err := m.Int64Counter(name, metric.WithUnit(unit), metric.WithDescription(description))
	handle(err)
	c := &Counter{counter: counter}
	for _, set := range series(labels) {
		c.series = append(c.series, []metric.AddOption{metric.WithAttributeSet(set)})
	}
	return c
}

// Series returns the number of series.
func (c *Counter) Series() int { return len(c.series) }

// Zero makes every series appear with the value 0.
func (c *Counter) Zero() {
	for series := range c.series {
		c.Add(0, series)
	}
}

// Add adds n to a series. It allocates no memory.
func (c *Counter) Add(n int64, series int) {
	c.counter.Add(context.Background(), n, c.series[series]...)
}

// Durations is a histogram in seconds. A series appears at its first observation.
type Durations struct {
	histogram metric.Float64Histogram
	series    [][]metric.RecordOption
}

// Durations returns a new histogram of seconds, with buckets from half a millisecond to one minute.
func (m Meter) Durations(name, description string, labels ...Label) *Durations {
	return m.seconds(name, description, labels,
		0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
}

// Delays returns a new histogram of seconds for messages that wait, perhaps for hours in an outage,
// with buckets from 5 milliseconds to one day.
func (m Meter) Delays(name, description string, labels ...Label) *Durations {
	return m.seconds(name, description, labels,
		0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 900, 3600, 14400, 86400)
}

func (m Meter) seconds(name, description string, labels []Label, bounds ...float64) *Durations {
	histogram, err := m.Float64Histogram(name, metric.WithUnit("s"), metric.WithDescription(description),
		metric.WithExplicitBucketBoundaries(bounds...))
	handle(err)
	d := &Durations{histogram: histogram}
	for _, set := range series(labels) {
		d.series = append(d.series, []metric.RecordOption{metric.WithAttributeSet(set)})
	}
	return d
}

// Enabled reports whether observations are recorded. Call it before a loop with Record.
func (d *Durations) Enabled() bool { return d.histogram.Enabled(context.Background()) }

// Record records one duration. It allocates no memory.
func (d *Durations) Record(took time.Duration, series int) {
	d.histogram.Record(context.Background(), took.Seconds(), d.series[series]...)
}

// Sizes is a histogram of numbers up to about 1000. A series appears at its first observation.
type Sizes struct {
	histogram metric.Int64Histogram
	series    [][]metric.RecordOption
}

// Sizes returns a new histogram of numbers.
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

// Record records one size. It allocates no memory.
func (s *Sizes) Record(size, series int) {
	s.histogram.Record(context.Background(), int64(size), s.series[series]...)
}

// Gauge returns a new gauge. Its value is observed at each collection.
func (m Meter) Gauge(name, unit, description string) metric.Int64Observable {
	gauge, err := m.Int64ObservableGauge(name, metric.WithUnit(unit), metric.WithDescription(description))
	handle(err)
	return gauge
}

// Level returns a new gauge whose values can be summed over several instances.
func (m Meter) Level(name, unit, description string) metric.Int64Observable {
	level, err := m.Int64ObservableUpDownCounter(name, metric.WithUnit(unit), metric.WithDescription(description))
	handle(err)
	return level
}

// StateOf returns the attribute State, for a gauge with one series for each state.
func StateOf(state string) metric.ObserveOption {
	return metric.WithAttributeSet(attribute.NewSet(attribute.String(State, state)))
}

// SecondsGauge returns a new gauge in seconds.
func (m Meter) SecondsGauge(name, description string) metric.Float64Observable {
	gauge, err := m.Float64ObservableGauge(name, metric.WithUnit("s"), metric.WithDescription(description))
	handle(err)
	return gauge
}

// Observe calls observe at each collection of the instruments, until end is called.
func (m Meter) Observe(observe metric.Callback, instruments ...metric.Observable) (end func()) {
	registration, err := m.RegisterCallback(observe, instruments...)
	if err != nil {
		handle(err)
		return func() {}
	}
	return func() { handle(registration.Unregister()) }
}

// An error of telemetry must not stop the work.
func handle(err error) {
	if err != nil {
		otel.Handle(err)
	}
}

// The second group belongs to OpenTelemetry's semantic conventions.
const (
	Outcome  = "once.outcome"
	Reason   = "once.reason"
	Attempt  = "once.attempt"
	Consumer = "once.consumer"
	Since    = "once.since"
	State    = "once.state"

	Topic      = "messaging.destination.name"
	MessageID  = "messaging.message.id"
	BodySize   = "messaging.message.body.size"
	BatchCount = "messaging.batch.message_count"
	ErrorType  = "error.type"

	consumerGroup = "messaging.consumer.group.name"
	system        = "messaging.system"
	operationName = "messaging.operation.name"
	operationType = "messaging.operation.type"
)

// Outcomes of work that either succeeds or fails.
const (
	Ok = iota
	Failed
)

// Done returns the label of the outcomes Ok and Failed.
func Done() Label { return Label{Outcome, []string{Ok: "ok", Failed: "failed"}} }

// Succeeded returns Ok if err is nil, and Failed otherwise.
func Succeeded(err error) int {
	if err != nil {
		return Failed
	}
	return Ok
}

const (
	// statsAge is how long Get returns a result again, so that the number of queries does not
	// depend on that of metric readers.
	statsAge = 2 * time.Second

	// statsTimeout is short, because metric readers wait for the query.
	statsTimeout = 2 * time.Second
)

// StatsCache caches the result of a query for observable metrics. The zero value is ready for use.
type StatsCache[T any] struct {
	mu      sync.Mutex
	expires time.Time
	stats   T
	ok      bool
	failed  bool // whether the last query failed and the failure was logged
}

// Get returns a result of query that is at most two seconds old, or false if it fails, because an
// old value would hide the failure. logError is called for the first of consecutive failures.
func (c *StatsCache[T]) Get(
	ctx context.Context, query func(ctx context.Context) (T, error), logError func(err error),
) (stats T, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if time.Now().Before(c.expires) {
		return c.stats, c.ok
	}
	ctx, cancel := context.WithTimeout(ctx, statsTimeout)
	defer cancel()
	var err error
	c.stats, err = query(ctx)
	c.ok = err == nil
	c.expires = time.Now().Add(statsAge)
	if err != nil && !c.failed {
		logError(err)
	}
	c.failed = err != nil
	return c.stats, c.ok
}
