package telemetry

import (
	"context"

	"github.com/ThreeDotsLabs/watermill/message"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"
)

// What came of quarantining a message.
const (
	Stored  = "stored"
	Settled = "settled" // there was nothing to store: it was resolved or discarded before, or is somebody else's
)

// Quarantine begins the span of storing a message that was given up, for the
// reason. It continues the trace that the message brings, unless ctx has a span
// of someone else's. msg may be nil. end is told what came of it; an error is
// that it could not be stored.
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
