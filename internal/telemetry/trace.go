package telemetry

import (
	"context"
	"strings"

	"github.com/ThreeDotsLabs/watermill/message"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
)

// Traceparent and tracestate are the metadata keys of a trace, as defined by W3C.
const (
	Traceparent = "traceparent"
	tracestate  = "tracestate"
)

// w3c is the propagator of the library. The library stores the trace of a message in a
// row, and another process reads it. The global propagator of that process may use
// another format, so the library does not use the global propagator.
var w3c propagation.TraceContext

// Tracer creates the spans of one package.
type Tracer struct{ trace.Tracer }

// NewTracer returns the tracer of a package of this module. A nil provider means the
// global provider.
func NewTracer(provider trace.TracerProvider, pkg string) Tracer {
	if provider == nil {
		provider = otel.GetTracerProvider()
	}
	return Tracer{provider.Tracer(scope + pkg)}
}

// Enabled reports whether the tracer records spans. To find out, it begins a span that
// has a parent. A tracer that records nothing returns a span with the id of the parent.
// Any other tracer gives the span its own id. The parent is not sampled, and the span
// is never ended, so the span is not exported.
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

// Extract returns ctx with the trace in metadata. It returns false if metadata contains
// no trace, or a trace that is not sampled.
func Extract(ctx context.Context, metadata message.Metadata) (context.Context, bool) {
	if metadata[Traceparent] == "" {
		return ctx, false
	}
	ctx = w3c.Extract(ctx, propagation.MapCarrier(metadata))
	return ctx, trace.SpanContextFromContext(ctx).IsSampled()
}

// Text returns name as valid UTF-8 of at most 255 bytes, because exporters drop a whole
// batch of spans if one byte is invalid.
func Text(name string) string {
	const maxLength = 255
	if len(name) > maxLength {
		name = name[:maxLength]
	}
	return strings.ToValidUTF8(name, "\uFFFD")
}

// Producer begins a span for an operation on messages to topic. The caller must end the
// span. The parameter operation is this module's name of the operation, and kind is
// OpenTelemetry's type of the operation.
func (t Tracer) Producer(
	ctx context.Context, operation, kind, topic string, more ...attribute.KeyValue,
) (context.Context, trace.Span) {
	return t.begin(ctx, trace.SpanKindProducer, operation, kind, topic, more...)
}

// begin works like [Tracer.Producer], for a span of the kind spanKind.
//
//nolint:spancheck // the caller ends the span
func (t Tracer) begin(
	ctx context.Context, spanKind trace.SpanKind, operation, kind, topic string, more ...attribute.KeyValue,
) (context.Context, trace.Span) {
	topic = Text(topic)
	return t.Start(ctx, operation+" "+topic, trace.WithSpanKind(spanKind), trace.WithAttributes(more...), trace.WithAttributes(
		attribute.String("messaging.system", "watermill"),
		attribute.String("messaging.operation.name", operation),
		attribute.String("messaging.operation.type", kind),
		attribute.String(Topic, topic),
	))
}
