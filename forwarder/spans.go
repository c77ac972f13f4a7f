package forwarder

import (
	"context"

	"github.com/ThreeDotsLabs/watermill/message"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"github.com/watermill-once/once/internal/telemetry"
)

// begin begins the span of a publish, if the row carries a trace that is
// recorded. The message goes on with that span as its parent, and has it in its
// context; the row keeps what it has, for the next attempt.
func begin(tracer *telemetry.Tracer, r *row, msg *message.Message) trace.Span {
	if tracer == nil {
		return nil
	}
	ctx, ok := telemetry.Extract(context.Background(), msg.Metadata)
	if !ok {
		return nil
	}
	ctx, span := tracer.Producer(ctx, "forward", "send", r.topic,
		attribute.String(telemetry.MessageID, telemetry.Text(r.id)),
		attribute.Int(telemetry.BodySize, len(r.payload)),
		attribute.Int(telemetry.Attempt, r.attempts+1))
	telemetry.Inject(ctx, msg.Metadata)
	msg.SetContext(ctx)
	return span
}

// finish ends the span of an order that was answered. The error's text stays
// out of it: a publisher may quote anything.
func finish(a answer, outcome Outcome) {
	if a.span == nil {
		return
	}
	a.span.SetAttributes(attribute.String(telemetry.Outcome, outcome.String()))
	if outcome != Confirmed {
		a.span.SetStatus(codes.Error, outcome.String())
		a.span.SetAttributes(attribute.String(telemetry.ErrorType, outcome.String()))
	}
	a.span.End()
}
