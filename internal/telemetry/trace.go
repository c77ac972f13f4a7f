package telemetry

import (
	"context"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
)

// Traceparent and tracestate are the metadata keys of a trace, as defined by W3C.
const (
	Traceparent = "traceparent"
	tracestate  = "tracestate"
)

// w3c: another process reads the trace that is stored with a message, and its global propagator may
// use another format.
var w3c propagation.TraceContext

// Tracer creates the spans of one package.
type Tracer struct{ trace.Tracer }

// NewTracer returns the tracer of a package. A nil provider means the global one.
func NewTracer(provider trace.TracerProvider, pkg string) Tracer {
	if provider == nil {
		provider = otel.GetTracerProvider()
	}
	return Tracer{provider.Tracer(scope+pkg, trace.WithSchemaURL(schemaURL))}
}

// Enabled reports whether the tracer records spans, by beginning one that has a parent. A tracer
// that records nothing returns a span with the id of the parent, any other its own. The parent is
// not sampled, and the span is never ended, so the span is not exported.
//
//nolint:spancheck // End would export the span
func (t Tracer) Enabled() bool {
	parent := trace.NewSpanContext(trace.SpanContextConfig{TraceID: trace.TraceID{1}, SpanID: trace.SpanID{1}, Remote: true})
	_, span := t.Start(trace.ContextWithRemoteSpanContext(context.Background(), parent), "enabled?")
	return span.SpanContext().SpanID() != parent.SpanID()
}

// Inject replaces the trace in metadata with the trace of ctx.
func Inject(ctx context.Context, metadata message.Metadata) {
	delete(metadata, Traceparent)
	delete(metadata, tracestate)
	w3c.Inject(ctx, propagation.MapCarrier(metadata))
}

// Extract returns ctx with the trace in metadata, or false without one, or if it is not sampled.
func Extract(ctx context.Context, metadata message.Metadata) (context.Context, bool) {
	if metadata[Traceparent] == "" {
		return ctx, false
	}
	ctx = w3c.Extract(ctx, propagation.MapCarrier(metadata))
	return ctx, trace.SpanContextFromContext(ctx).IsSampled()
}

// Text returns name as valid UTF-8 of at most 255 bytes: exporters drop a whole batch of spans for
// one invalid byte.
func Text(name string) string {
	const maxLength = 255
	if len(name) > maxLength {
		name = name[:maxLength]
	}
	return strings.ToValidUTF8(name, "\uFFFD")
}

// Producer begins a span for an operation on messages to topic, which the caller must end.
// operation is this module's name, and kind OpenTelemetry's type of it. The span has the attributes
// of the system of ctx, and a link to created, if it is valid.
func (t Tracer) Producer(
	ctx context.Context, operation, kind, topic string, created trace.SpanContext, more ...attribute.KeyValue,
) (context.Context, trace.Span) {
	return t.begin(ctx, trace.SpanKindProducer, operation, kind, topic, links(created), more...)
}

// begin works like [Tracer.Producer], for a span of the kind spanKind.
//
//nolint:spancheck // the caller ends the span
func (t Tracer) begin(
	ctx context.Context, spanKind trace.SpanKind, operation, kind, topic string, linked []trace.Link, more ...attribute.KeyValue,
) (context.Context, trace.Span) {
	topic = Text(topic)
	return t.Start(ctx, operation+" "+topic, trace.WithSpanKind(spanKind), trace.WithLinks(linked...),
		trace.WithAttributes(more...), trace.WithAttributes(systemOf(ctx).attributes()...), trace.WithAttributes(
			attribute.String(operationName, operation),
			attribute.String(operationType, kind),
			attribute.String(Topic, topic),
		))
}

// links returns a link to the span in whose trace a message was created, if there is one.
func links(created trace.SpanContext) []trace.Link {
	if !created.IsValid() {
		return nil
	}
	return []trace.Link{{SpanContext: created}}
}

// remote returns the span in the metadata of a message.
func remote(msg *message.Message) trace.SpanContext {
	if msg.Metadata[Traceparent] == "" {
		return trace.SpanContext{}
	}
	return trace.SpanContextFromContext(w3c.Extract(context.Background(), propagation.MapCarrier(msg.Metadata)))
}

func fail(span trace.Span, errorType string) {
	span.SetStatus(codes.Error, errorType)
	span.SetAttributes(attribute.String(ErrorType, errorType))
}

type handlingKey struct{}

// Handling is one attempt, which the middlewares of a chain share: the outermost begins and ends it,
// and the innermost sets the outcome.
type Handling struct {
	span   trace.Span // nil if no span is recorded
	result *result    // nil if nothing is recorded
	own    bool

	processes *Processes // nil if no duration is recorded
	series    processSeries
	began     time.Time
}

type result struct {
	outcome string
	failed  bool
}

// End sets the outcome. The first call counts. The middleware that began the span ends it. The span
// does not contain the text of the error, because a handler's error may contain anything.
func (h Handling) End(outcome string, failed bool) {
	if h.result == nil {
		return
	}
	if h.result.outcome == "" {
		*h.result = result{outcome, failed}
	}
	if !h.own {
		return
	}
	if h.processes != nil {
		if h.result.failed {
			h.series.failure = h.result.outcome
		}
		h.processes.record(h.series, time.Since(h.began))
	}
	if h.span == nil {
		return
	}
	h.span.SetAttributes(attribute.String(Outcome, h.result.outcome))
	if h.result.failed {
		fail(h.span, h.result.outcome)
	}
	h.span.End()
}

// Outcomes of quarantining a message.
const (
	Stored  = "stored"
	Settled = "settled" // nothing had to be stored: the row was resolved or discarded, or another process has claimed it
)

// Quarantine begins the span for quarantining a message, which continues that of ctx, or the trace
// in msg, which may be nil. Call end with the outcome, and with the error if the message could not
// be stored.
func (t Tracer) Quarantine(
	ctx context.Context, enabled bool, consumer, topic, reason string, msg *message.Message,
) (_ context.Context, end func(outcome string, err error)) {
	if msg != nil && !trace.SpanContextFromContext(ctx).IsValid() {
		ctx, _ = Extract(ctx, msg.Metadata)
	}
	if !enabled {
		return ctx, func(string, error) {}
	}
	ctx, span := t.begin(ctx, trace.SpanKindClient, "quarantine", "settle", topic, nil,
		attribute.String(consumerGroup, Text(consumer)),
		attribute.String(Reason, Text(reason)),
	)
	if msg != nil {
		span.SetAttributes(attribute.String(MessageID, Text(msg.UUID)), attribute.Int(BodySize, len(msg.Payload)))
	}
	return ctx, func(outcome string, err error) {
		if err != nil {
			outcome = "failed"
			fail(span, outcome)
		}
		span.SetAttributes(attribute.String(Outcome, outcome))
		span.End()
	}
}
