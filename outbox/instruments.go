package outbox

import (
	"context"
	"errors"
	"maps"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"github.com/watermill-once/once/internal/telemetry"
)

type instruments struct {
	tracer    telemetry.Tracer
	published *telemetry.Counter
	duration  *telemetry.Durations
}

// Outcomes of messages: indexes of outcomes.
const (
	stored = iota
	refused
	failed
)

var outcomes = []string{stored: "stored", refused: "refused", failed: "failed"}

func newInstruments(config Config) *instruments {
	meter := telemetry.NewMeter(config.MeterProvider, "outbox")
	i := &instruments{
		tracer: telemetry.NewTracer(config.TracerProvider, "outbox"),
		published: meter.Counter("once.outbox.published", "{message}",
			"Messages passed to Publish, including transactions that were rolled back later.",
			telemetry.Label{Key: telemetry.Outcome, Values: outcomes}),
		duration: meter.Durations("once.outbox.publish.duration",
			"Duration of storing the messages of one call."),
	}
	i.published.Zero()
	return i
}

type call struct {
	*instruments

	messages int
	began    time.Time
	ctx      context.Context // messages without a trace get the trace of this context
	parent   trace.SpanContext
	span     trace.Span // nil if the parent span is not recorded
	spanned  context.Context
}

// The parent of the call's span is the span of the first message, or else of ctx.
func (i *instruments) begin(ctx context.Context, topic string, msgs []*message.Message) *call {
	c := &call{instruments: i, messages: len(msgs), began: time.Now(), ctx: ctx}
	if len(msgs) == 0 || msgs[0] == nil {
		return c
	}
	ctx = c.context(msgs[0])
	c.parent = trace.SpanContextFromContext(ctx)
	if !trace.SpanFromContext(ctx).IsRecording() {
		return c
	}
	var attributes []attribute.KeyValue
	if len(msgs) == 1 {
		attributes = []attribute.KeyValue{
			attribute.String(telemetry.MessageID, telemetry.Text(msgs[0].UUID)),
			attribute.Int(telemetry.BodySize, len(msgs[0].Payload)),
		}
	}
	c.spanned, c.span = i.tracer.Producer(ctx, "outbox.publish", "create", topic, trace.SpanContext{}, attributes...)
	return c
}

// A message without a trace gets that of the call.
func (c *call) context(msg *message.Message) context.Context {
	ctx := msg.Context()
	if c.ctx != nil && !trace.SpanContextFromContext(ctx).IsValid() {
		return c.ctx
	}
	return ctx
}

// metadata does not change msg, because a later Publish of it may have a different trace.
func (c *call) metadata(msg *message.Message) message.Metadata {
	if msg.Metadata[telemetry.Traceparent] != "" {
		return msg.Metadata
	}
	ctx := c.context(msg)
	own := trace.SpanContextFromContext(ctx)
	if !own.IsValid() {
		return msg.Metadata
	}
	if c.span != nil && own.Equal(c.parent) {
		ctx = c.spanned
	}
	metadata := make(message.Metadata, len(msg.Metadata)+2)
	maps.Copy(metadata, msg.Metadata)
	telemetry.Inject(ctx, metadata)
	return metadata
}

func (c *call) end(err error) {
	outcome := stored
	switch {
	case err == nil:
		c.duration.Record(time.Since(c.began), 0)
	case errors.Is(err, ErrInvalid):
		outcome = refused
	default:
		outcome = failed
	}
	c.published.Add(int64(c.messages), outcome)
	if c.span == nil {
		return
	}
	if err != nil { // the text of err is left out, because it may quote stored data
		c.span.SetStatus(codes.Error, outcomes[outcome])
		c.span.SetAttributes(attribute.String(telemetry.ErrorType, outcomes[outcome]))
	}
	c.span.End()
}
