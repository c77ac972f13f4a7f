package telemetry

import (
	"context"

	"github.com/ThreeDotsLabs/watermill/message"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"
)

// Outcomes of quarantining a message.
const (
	Stored  = "stored"
	Settled = "settled" // nothing had to be stored: the row was resolved or discarded, or another process has claimed it
)

// Quarantine begins the span for quarantining a message. The span continues the trace
// in the message, unless ctx already has a span. The parameter msg may be nil. Call the
// returned function end with the outcome. If the message could not be stored, call end
// with the error.
func (t Tracer) Quarantine(
	ctx context.Context, enabled bool, consumer, topic, reason string, msg *message.Message,
) (_ context.Context, end func(outcome string, err error)) {
	if msg != nil && !trace.SpanContextFromContext(ctx).IsValid() {
		ctx, _ = Extract(ctx, msg.Metadata)
	}
	if !enabled {
		return ctx, func(string, error) {}
	}
	ctx, span := t.begin(ctx, trace.SpanKindClient, "quarantine", "settle", topic,
		attribute.String(consumerGroup, Text(consumer)),
		attribute.String(Reason, Text(reason)),
	)
	if msg != nil {
		span.SetAttributes(attribute.String(MessageID, Text(msg.UUID)), attribute.Int(BodySize, len(msg.Payload)))
	}
	return ctx, func(outcome string, err error) {
		if err != nil {
			outcome = "failed"
			span.SetStatus(codes.Error, outcome)
			span.SetAttributes(attribute.String(ErrorType, outcome))
		}
		span.SetAttributes(attribute.String(Outcome, outcome))
		span.End()
	}
}
