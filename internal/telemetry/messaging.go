package telemetry

import (
	"context"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"
)

// schemaURL names the version of OpenTelemetry's semantic conventions whose names the package uses.
// A test compares them with the conventions.
const schemaURL = "https://opentelemetry.io/schemas/1.44.0"

// System is a messaging system. The zero value is Watermill, whose broker is unknown.
type System struct {
	Name, Address string
	Port          int
}

func (s System) attributes() []attribute.KeyValue {
	if s.Name == "" {
		return []attribute.KeyValue{attribute.String(system, "watermill")}
	}
	all := []attribute.KeyValue{attribute.String(system, s.Name)}
	if s.Address != "" {
		all = append(all, attribute.String("server.address", Text(s.Address)))
	}
	if s.Port > 0 {
		all = append(all, attribute.Int("server.port", s.Port))
	}
	return all
}

type systemKey struct{}

// WithSystem returns a context for messages that s has delivered.
func WithSystem(ctx context.Context, s System) context.Context {
	return context.WithValue(ctx, systemKey{}, s)
}

func systemOf(ctx context.Context) System {
	s, _ := ctx.Value(systemKey{}).(System)
	return s
}

// SystemOf returns the system of a transport that knows it.
func SystemOf(transport any) System {
	if known, ok := transport.(interface {
		MessagingSystem() (name, address string, port int)
	}); ok {
		name, address, port := known.MessagingSystem()
		return System{name, address, port}
	}
	return System{}
}

// standardSeconds returns a histogram of the conventions, with the buckets that they recommend.
func (m Meter) standardSeconds(name, description string) metric.Float64Histogram {
	histogram, err := m.Float64Histogram(name, metric.WithUnit("s"), metric.WithDescription(description),
		metric.WithExplicitBucketBoundaries(0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10))
	handle(err)
	return histogram
}

func (m Meter) standardCounter(name, description string) metric.Int64Counter {
	counter, err := m.Int64Counter(name, metric.WithUnit("{message}"), metric.WithDescription(description))
	handle(err)
	return counter
}

// Sends records the conventions' metrics of messages that a client sends to a broker.
type Sends struct {
	sent     metric.Int64Counter
	duration metric.Float64Histogram
	counted  [][]metric.AddOption
	timed    [][]metric.RecordOption
}

// Sends returns the metrics of sending to a system. The outcome with index 0 is success, the others
// are types of errors.
func (m Meter) Sends(to System, operation string, outcomes []string) *Sends {
	s := &Sends{
		sent:     m.standardCounter("messaging.client.sent.messages", "Messages that a producer attempted to send to the broker."),
		duration: m.standardSeconds("messaging.client.operation.duration", "Duration of sending a message, until its confirm."),
	}
	for i, outcome := range outcomes {
		attributes := append(to.attributes(), attribute.String(operationName, operation))
		if i > 0 {
			attributes = append(attributes, attribute.String(ErrorType, outcome))
		}
		s.counted = append(s.counted, []metric.AddOption{metric.WithAttributeSet(attribute.NewSet(attributes...))})
		attributes = append(attributes, attribute.String(operationType, "send"))
		s.timed = append(s.timed, []metric.RecordOption{metric.WithAttributeSet(attribute.NewSet(attributes...))})
	}
	s.Add(0, 0)
	return s
}

// Add counts messages.
func (s *Sends) Add(n int64, outcome int) { s.sent.Add(context.Background(), n, s.counted[outcome]...) }

// Timed reports whether durations are recorded.
func (s *Sends) Timed() bool { return s.duration.Enabled(context.Background()) }

// Record records the duration of one message.
func (s *Sends) Record(took time.Duration, outcome int) {
	s.duration.Record(context.Background(), took.Seconds(), s.timed[outcome]...)
}

// Consumed counts the messages that a broker has delivered, as the conventions say.
type Consumed struct{ counter metric.Int64Counter }

// Consumed returns the metric of delivered messages.
func (m Meter) Consumed() Consumed {
	return Consumed{m.standardCounter("messaging.client.consumed.messages", "Messages that were delivered to the application.")}
}

// Of returns a function that counts a message of a subscription.
func (c Consumed) Of(from System, operation, topic string) (count func()) {
	option := []metric.AddOption{metric.WithAttributeSet(attribute.NewSet(append(from.attributes(),
		attribute.String(operationName, operation), attribute.String(Topic, Text(topic)))...))}
	return func() { c.counter.Add(context.Background(), 1, option...) }
}

// Processes records the spans of handler calls, and their durations as the conventions say.
type Processes struct {
	tracer   Tracer
	traced   func() bool
	duration metric.Float64Histogram
	options  sync.Map // series -> []metric.RecordOption
}

// processSeries identifies a series of messaging.process.duration. Consumers and topics are those of a
// router's handlers.
type processSeries struct {
	system                   System
	consumer, topic, failure string
}

// NewProcesses returns the instruments of a package that calls handlers.
func NewProcesses(meter Meter, tracer Tracer) *Processes {
	return &Processes{
		tracer: tracer, traced: sync.OnceValue(tracer.Enabled),
		duration: meter.standardSeconds("messaging.process.duration", "Duration of handling a message."),
	}
}

// Handle begins an attempt, or uses that of an outer middleware. It continues the trace of ctx, or
// else of the message, also in the returned context if no span is recorded. number starts at 1, or
// is 0 if it is unknown.
func (p *Processes) Handle(
	ctx context.Context, consumer, topic string, number int, msg *message.Message,
) (context.Context, Handling) {
	if h, ok := ctx.Value(handlingKey{}).(Handling); ok {
		h.own = false
		return ctx, h
	}
	created := remote(msg)
	if created.IsValid() && !trace.SpanContextFromContext(ctx).IsValid() {
		ctx = trace.ContextWithRemoteSpanContext(ctx, created)
	}
	timed := p.duration.Enabled(ctx)
	if !p.traced() && !timed {
		return ctx, Handling{}
	}
	h := Handling{result: &result{}, own: true}
	if timed {
		h.processes, h.began = p, time.Now()
		h.series = processSeries{system: systemOf(ctx), consumer: consumer, topic: topic}
	}
	if p.traced() {
		ctx, h.span = p.tracer.begin(ctx, trace.SpanKindConsumer, "handle", "process", topic, links(created),
			attribute.String(consumerGroup, Text(consumer)),
			attribute.String(MessageID, Text(msg.UUID)),
			attribute.Int(BodySize, len(msg.Payload)),
		)
		if number > 0 {
			h.span.SetAttributes(attribute.Int(Attempt, number))
		}
	}
	return context.WithValue(ctx, handlingKey{}, h), h
}

// HandleBatch begins the span of a call that handles several messages, with a link to the trace of
// each. Call end with the error of the call.
func (p *Processes) HandleBatch(
	ctx context.Context, consumer, topic string, msgs []*message.Message,
) (_ context.Context, end func(err error)) {
	if !p.traced() {
		return ctx, func(error) {}
	}
	var all []trace.Link
	for _, msg := range msgs {
		all = append(all, links(remote(msg))...)
	}
	ctx, span := p.tracer.begin(ctx, trace.SpanKindConsumer, "handle_batch", "process", topic, all,
		attribute.String(consumerGroup, Text(consumer)), attribute.Int(BatchCount, len(msgs)))
	return ctx, func(err error) {
		if err != nil {
			fail(span, "failed")
		}
		span.End()
	}
}

func (p *Processes) record(s processSeries, took time.Duration) {
	options, ok := p.options.Load(s)
	if !ok {
		attributes := append(s.system.attributes(), attribute.String(operationName, "handle"),
			attribute.String(consumerGroup, Text(s.consumer)), attribute.String(Topic, Text(s.topic)))
		if s.failure != "" {
			attributes = append(attributes, attribute.String(ErrorType, s.failure))
		}
		options, _ = p.options.LoadOrStore(s, []metric.RecordOption{metric.WithAttributeSet(attribute.NewSet(attributes...))})
	}
	list, _ := options.([]metric.RecordOption)
	p.duration.Record(context.Background(), took.Seconds(), list...)
}
