package forwarder

import (
	"context"

	"github.com/ThreeDotsLabs/watermill/message"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"github.com/watermill-once/once/internal/dispatch"
	"github.com/watermill-once/once/internal/telemetry"
)

// begin starts the span of a publish if the metadata of msg contains a sampled trace.
// It makes the new span the parent in the metadata and the context of msg. It does not
// change m, because the next attempt needs the original metadata.
func begin(tracer *telemetry.Tracer, m *dispatch.Message, msg *message.Message) trace.Span {
	if tracer == nil {
		return nil
	}
	ctx, ok := telemetry.Extract(context.Background(), msg.Metadata)
	if !ok {
		return nil
	}
	ctx, span := tracer.Producer(ctx, "forward", "send", m.Topic,
		attribute.String(telemetry.MessageID, telemetry.Text(m.ID)),
		attribute.Int(telemetry.BodySize, len(m.Payload)),
		attribute.Int(telemetry.Attempt, m.Attempts+1))
	telemetry.Inject(ctx, msg.Metadata)
	msg.SetContext(ctx)
	return span
}

// finish ends the span of a publish. It does not record the text of the error, because
// a publisher may include any data in it.
func finish(r result, outcome Outcome) {
	if r.span == nil {
		return
	}
	r.span.SetAttributes(attribute.String(telemetry.Outcome, outcome.String()))
	if outcome != Confirmed {
		r.span.SetStatus(codes.Error, outcome.String())
		r.span.SetAttributes(attribute.String(telemetry.ErrorType, outcome.String()))
	}
	r.span.End()
}
