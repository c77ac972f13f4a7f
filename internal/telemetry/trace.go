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

// Traceparent and tracestate are the metadata keys of a trace, as W3C names
// them.
const (
	Traceparent = "traceparent"
	tracestate  = "tracestate"
)

// w3c is what the library speaks, whatever propagator is set globally: a row
// is read by another process than wrote it, perhaps of another version.
var w3c propagation.TraceContext

// Tracer makes the spans of one package.
type Tracer struct{ trace.Tracer }

// NewTracer returns the tracer for a package of ours. A nil provider is the
// global one.
func NewTracer(provider trace.TracerProvider, pkg string) Tracer {
	if provider == nil {
		provider = otel.GetTracerProvider()
	}
	return Tracer{provider.Tracer(scope + pkg)}
}

// Enabled says whether spans of the tracer come to anything. One that does
// nothing gives them no identity of their own. The span that is begun to see
// this has a parent that is not sampled, and is not ended, so nobody hears of it.
//
//nolint:spancheck // an end would have it exported
func (t Tracer) Enabled() bool {
	parent := trace.NewSpanContext(trace.SpanContextConfig{TraceID: trace.TraceID{1}, SpanID: trace.SpanID{1}, Remote: true})
	_, span := t.Start(trace.ContextWithRemoteSpanContext(context.Background(), parent), "enabled?")
	return span.SpanContext().SpanID() != parent.SpanID()
}

// Inject writes the trace of ctx into metadata, in place of the one that is
// there.
func Inject(ctx context.Context, metadata message.Metadata) {
	delete(metadata, Traceparent)
	delete(metadata, tracestate)
	w3c.Inject(ctx, propagation.MapCarrier(metadata))
}

// Extract returns ctx with the trace that metadata names, or false if it names
// none, or one that nobody records.
func Extract(ctx context.Context, metadata message.Metadata) (context.Context, bool) {
	if metadata[Traceparent] == "" {
		return ctx, false
	}
	ctx = w3c.Extract(ctx, propagation.MapCarrier(metadata))
	return ctx, trace.SpanContextFromContext(ctx).IsSampled()
}

// Text makes a name fit for a span: exporters drop everything over a single
// byte that is not UTF-8.
func Text(name string) string {
	const enough = 255
	if len(name) > enough {
		name = name[:enough]
	}
	return strings.ToValidUTF8(name, "\uFFFD")
}

// Producer begins a span about messages to topic, which whoever calls ends.
// operation is our name for what is done with them, kind is OpenTelemetry's.
func (t Tracer) Producer(
	ctx context.Context, operation, kind, topic string, more ...attribute.KeyValue,
) (context.Context, trace.Span) {
	return t.begin(ctx, trace.SpanKindProducer, operation, kind, topic, more...)
}

// begin is [Tracer.Producer] for whoever it is that does it.
//
//nolint:spancheck // whoever called ends it
func (t Tracer) begin(
	ctx context.Context, who trace.SpanKind, operation, kind, topic string, more ...attribute.KeyValue,
) (context.Context, trace.Span) {
	topic = Text(topic)
	return t.Start(ctx, operation+" "+topic, trace.WithSpanKind(who), trace.WithAttributes(more...), trace.WithAttributes(
		attribute.String("messaging.system", "watermill"),
		attribute.String("messaging.operation.name", operation),
		attribute.String("messaging.operation.type", kind),
		attribute.String(Topic, topic),
	))
}
