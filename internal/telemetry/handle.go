package telemetry

import (
	"context"

	"github.com/ThreeDotsLabs/watermill/message"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"
)

type handlingKey struct{}

// Handling is the span of one attempt to handle a message. The middlewares of a
// chain share it: the outermost begins and ends it, the innermost knows best
// what came of it.
type Handling struct {
	span trace.Span // nil if nobody records one
	told *told
	own  bool
}

type told struct {
	outcome string
	failed  bool
}

// Handle begins the span of an attempt, or joins the one that is under way.
// Unless ctx has a span of someone else's, it continues the trace that the
// message brings; so does the returned context if no span is recorded. number
// is the attempt's, from 1, or 0 if that is not known.
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
	h := Handling{span: span, told: &told{}, own: true}
	return context.WithValue(ctx, handlingKey{}, h), h
}

// End says what came of the attempt. Who has said so first is believed; who
// began the span ends it. The error's text stays out of it: a handler may
// quote anything.
func (h Handling) End(outcome string, failed bool) {
	if h.span == nil {
		return
	}
	if h.told.outcome == "" {
		*h.told = told{outcome, failed}
	}
	if !h.own {
		return
	}
	h.span.SetAttributes(attribute.String(Outcome, h.told.outcome))
	if h.told.failed {
		h.span.SetStatus(codes.Error, h.told.outcome)
		h.span.SetAttributes(attribute.String(ErrorType, h.told.outcome))
	}
	h.span.End()
}
