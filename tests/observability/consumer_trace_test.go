package observability

import (
	"database/sql"
	"encoding/json"
	"maps"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"github.com/watermill-once/once/dedup"
	"github.com/watermill-once/once/outbox"
)

// Every attempt is a span in the trace of the message, and produced messages
// continue the trace.
func TestSpanOfAConsumerContinuesTheTraceOfTheProducer(t *testing.T) {
	t.Parallel()
	w := newWatch(t)
	db := w.database()
	failed := false
	in, _ := w.consume(db, func(*message.Message) error { return nil }, w.inbox(db).Middleware, produceAfter(&failed))
	ctx, service := w.traces.Tracer("service").Start(t.Context(), "service")
	msg := message.NewMessage("1", []byte("body"))
	msg.Metadata.Set("traceparent", traceparent(trace.SpanContextFromContext(ctx)))
	service.End()
	in.deliver(msg)
	in.deliver(msg.Copy())

	spans := w.named("handle t")
	if len(spans) != 3 {
		t.Fatalf("%d spans: %v", len(spans), w.spans.GetSpans())
	}
	for i, want := range []map[string]string{
		{"once.outcome": "failed", "once.attempt": "1", "error.type": "failed"},
		{"once.outcome": "applied", "once.attempt": "2"},
		{"once.outcome": "duplicate", "once.attempt": "1"},
	} {
		maps.Copy(want, map[string]string{
			"messaging.system": "watermill", "messaging.operation.name": "handle", "messaging.operation.type": "process",
			"messaging.destination.name": "t", "messaging.consumer.group.name": "payments",
			"messaging.message.id": "1", "messaging.message.body.size": "4",
		})
		span := spans[i]
		if got := attributes(span); !maps.Equal(got, want) {
			t.Errorf("span %d has %v, want %v", i, got, want)
		}
		if (span.Status.Code == codes.Error) != (i == 0) || span.SpanKind != trace.SpanKindConsumer {
			t.Errorf("span %d: %v, %v", i, span.Status, span.SpanKind)
		}
		if span.Parent.SpanID() != service.SpanContext().SpanID() || !span.Parent.IsRemote() {
			t.Errorf("span %d is a child of %v", i, span.Parent)
		}
	}
	create := w.named("outbox.publish u")
	if len(create) != 1 || create[0].Parent.SpanID() != spans[1].SpanContext.SpanID() {
		t.Fatalf("the produced message: %v", create)
	}
	if got := produced(t, db)["traceparent"]; got != traceparent(create[0].SpanContext) {
		t.Errorf("the produced message has %s", got)
	}
}

// A consumer that records no spans passes the trace on.
func TestTracePassesThroughAConsumerWithoutSpans(t *testing.T) {
	t.Parallel()
	w := newWatch(t)
	db := w.database()
	inbox, err := dedup.New(db, dedup.Config{Consumer: "payments", Outbox: outbox.Publisher})
	if err != nil {
		t.Fatal(err)
	}
	const brought = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	msg := message.NewMessage("1", nil)
	msg.Metadata.Set("traceparent", brought)
	failed := true
	_, err = inbox.Middleware(produceAfter(&failed)(nil))(msg)
	if err != nil {
		t.Fatal(err)
	}
	if got := produced(t, db)["traceparent"]; got != brought {
		t.Errorf("the produced message has %q", got)
	}
}

// produceAfter returns a handler that fails once and then produces a message.
func produceAfter(failed *bool) message.HandlerMiddleware {
	return func(message.HandlerFunc) message.HandlerFunc {
		return func(*message.Message) ([]*message.Message, error) {
			if !*failed {
				*failed = true
				return nil, errHandler
			}
			event := message.NewMessage("e", nil)
			outbox.SetTopic(event, "u")
			return []*message.Message{event}, nil
		}
	}
}

func produced(t *testing.T, db *sql.DB) map[string]string {
	t.Helper()
	var text []byte
	if err := db.QueryRowContext(t.Context(), `SELECT metadata FROM once_outbox`).Scan(&text); err != nil {
		t.Fatal(err)
	}
	metadata := map[string]string{}
	if err := json.Unmarshal(text, &metadata); err != nil {
		t.Fatal(err)
	}
	return metadata
}
