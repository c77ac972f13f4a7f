// Package observability compares the metrics, spans and logs of the library
// with docs/observability.md.
package observability

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	"go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/watermill-once/once/forwarder"
	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/outbox"
	"github.com/watermill-once/once/rabbit"
	"github.com/watermill-once/once/schema"
)

func TestMain(m *testing.M) { kit.MainWithTables(m) }

// watch records metrics, spans and logs.
type watch struct {
	*testing.T

	reader *metric.ManualReader
	meters *metric.MeterProvider
	spans  *tracetest.InMemoryExporter
	traces *trace.TracerProvider
	logs   kit.Logs
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
	kit.OK(w, w.reader.Collect(w.Context(), &all))
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
	kit.Eventually(w.T, time.Minute, what, condition)
}

// database returns a PostgreSQL database with our tables.
func (w *watch) database() *sql.DB {
	w.Helper()
	db := kit.Postgres(w.T).DB
	kit.OK(w, schema.Up(w.Context(), db, schema.Config{}))
	return db
}

func (w *watch) outbox() *outbox.Outbox {
	w.Helper()
	box, err := outbox.New(outbox.Config{MeterProvider: w.meters, TracerProvider: w.traces})
	kit.OK(w, err)
	return box
}

// publish commits messages to the outbox.
func (w *watch) publish(ctx context.Context, db *sql.DB, box *outbox.Outbox, topic string, msgs ...*message.Message) {
	w.Helper()
	kit.OK(w, box.InTx(ctx, db, func(_ *sql.Tx, events message.Publisher) error { return events.Publish(topic, msgs...) }))
}

// forward runs a forwarder until the test ends, or end is called.
func (w *watch) forward(db *sql.DB, publisher message.Publisher, config forwarder.Config) (end func()) {
	w.Helper()
	config.MeterProvider, config.TracerProvider, config.Logger = w.meters, w.traces, &w.logs
	config.PollMax = 20 * time.Millisecond
	f, err := forwarder.New(db, publisher, config)
	kit.OK(w, err)
	ended := kit.Go(func() error { return f.Run(context.WithoutCancel(w.Context())) })
	end = sync.OnceFunc(func() {
		kit.Check(w, errors.Join(f.Close(), <-ended))
	})
	w.Cleanup(end)
	return end
}

// rabbit returns a publisher to RabbitMQ, closed when the test ends.
func (w *watch) rabbit(config wamqp.Config, cfg rabbit.PublisherConfig) *rabbit.Publisher {
	w.Helper()
	cfg.MeterProvider, cfg.Logger = w.meters, &w.logs
	publisher, err := rabbit.NewPublisher(config, cfg)
	kit.OK(w, err)
	w.Cleanup(func() { _ = publisher.Close() })
	return publisher
}

// queue returns a configuration that publishes to the queue named by the topic.
func queue(url string) wamqp.Config {
	config := wamqp.NewDurableQueueConfig(url)
	config.Marshaler = rabbit.Marshaler{}
	config.Connection.Reconnect = &wamqp.ReconnectConfig{
		BackoffInitialInterval: 10 * time.Millisecond, BackoffMaxInterval: 100 * time.Millisecond,
	}
	return config
}

// declare declares a queue.
func (w *watch) declare(url, name string, args amqp.Table) *amqp.Channel {
	w.Helper()
	conn, err := amqp.Dial(url)
	kit.OK(w, err)
	w.Cleanup(func() { _ = conn.Close() })
	channel, err := conn.Channel()
	if err == nil {
		_, err = channel.QueueDeclare(name, true, false, false, false, args)
	}
	kit.OK(w, err)
	return channel
}

func (w *watch) exec(db *sql.DB, query string) {
	w.Helper()
	kit.Exec(w, db, query)
}

// scripted is a publisher whose outcomes are the results of the function answer. It
// reports them from its own goroutines.
type scripted struct {
	answer  func(topic string, msg *message.Message) error
	running sync.WaitGroup
}

func (s *scripted) Publish(topic string, msgs ...*message.Message) error {
	return errors.New("only PublishAsync is used")
}

func (s *scripted) Close() error { return nil }

func (s *scripted) PublishAsync(topic string, msg *message.Message, done func(error)) {
	s.running.Go(func() { done(s.answer(topic, msg)) })
}

// outcomeError is an error that reports its own outcome, like the errors of package
// rabbit.
type outcomeError string

func (e outcomeError) Error() string      { return string(e) }
func (e outcomeError) Refused() bool      { return e == "refused" }
func (e outcomeError) Unacceptable() bool { return e == "unacceptable" }
func (e outcomeError) Unavailable() bool  { return e == "unavailable" }

// want reports a series that does not have the value.
func (w *watch) want(value float64, name, series string) {
	w.Helper()
	if got := w.value(name, series); got != value {
		w.Errorf("%s{%s} is %v, want %v", name, series, got, value)
	}
}
