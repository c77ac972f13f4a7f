package telemetry

import (
	"context"

	"github.com/ThreeDotsLabs/watermill/message"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"
)

type handlingKey struct{}

// Handling is the span of one attempt to handle a message. The middlewares of a chain
// share the span: the outermost middleware begins and ends it, and the innermost sets
// the outcome.
type Handling struct {
	span   trace.Span // nil if no span is recorded
	result *result
	own    bool
}

type result struct {
	outcome string
	failed  bool
}

// Handle begins the span of an attempt. If the attempt already has a span, Handle uses
// it. A new span continues the trace of ctx, or the trace in the message if ctx has no
// span. If the parameter enabled is false, no span is recorded, but the returned
// context still continues this trace. The parameter number is the number of the
// attempt, which starts at 1, or 0 if it is unknown.
func (t Tracer) Handle(
	ctx context.Context, enabled bool, consumer, topic string, number int, msg *message.Message,
) (context.Context, Handling) {
	if h, ok := ctx.Value(handlingKey{}).(Handling); ok {
		h.own = false
		return ctx, h
	}
	if !trace.SpanContextFromContext(ctx).IsValid() {
		ctx, _ = Extract(ctx, msg.Metadata)
	}
	if !enabled {
		return ctx, Handling{}
	}
	ctx, span := t.begin(ctx, trace.SpanKindConsumer, "handle", "process", topic,
		attribute.String(consumerGroup, Text(consumer)),
		attribute.String(MessageID, Text(msg.UUID)),
		attribute.Int(BodySize, len(msg.Payload)),
	)
	if number > 0 {
		span.SetAttributes(attribute.Int(Attempt, number))
	}
	h := Handling{span: span, result: &result{}, own: true}
	return context.WithValue(ctx, handlingKey{}, h), h
}

// End sets the outcome of the attempt. If several middlewares call End, only the first
// outcome counts, and the middleware that began the span ends it. The span does not
// contain the text of the error, because a handler's error may contain anything.
func (h Handling) End(outcome string, failed bool) {
	if h.span == nil {
		return
	}
	if h.result.outcome == "" {
		*h.result = result{outcome, failed}
	}
	if !h.own {
		return
	}
	h.span.SetAttributes(attribute.String(Outcome, h.result.outcome))
	if h.result.failed {
		h.span.SetStatus(codes.Error, h.result.outcome)
		h.span.SetAttributes(attribute.String(ErrorType, h.result.outcome))
	}
	h.span.End()
}
