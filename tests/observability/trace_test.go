package observability

import (
	"context"
	"database/sql"
	"encoding/json"
	"maps"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/watermill-once/once/dedup"
	"github.com/watermill-once/once/forwarder"
	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/outbox"
	"github.com/watermill-once/once/rabbit"
)

// named returns the spans with a name, in the order in which they ended.
func (w *watch) named(name string) tracetest.SpanStubs {
	var found tracetest.SpanStubs
	for _, span := range w.spans.GetSpans() {
		if span.Name == name {
			found = append(found, span)
		}
	}
	return found
}

// traceparent returns a span in the format of W3C Trace Context.
func traceparent(span trace.SpanContext) string {
	return "00-" + span.TraceID().String() + "-" + span.SpanID().String() + "-" + span.TraceFlags().String()
}

// attributes returns the attributes of a span, as text.
func attributes(span tracetest.SpanStub) map[string]string { return asText(span.Attributes) }

func asText(attributes []attribute.KeyValue) map[string]string {
	all := map[string]string{}
	for _, a := range attributes {
		all[string(a.Key)] = a.Value.Emit()
	}
	return all
}

// A trace continues from the span of the service through the outbox row to the
// queue.
func TestTraceReachesTheQueue(t *testing.T) {
	t.Parallel()
	w := newWatch(t)
	db, box, broker := w.database(), w.outbox(), kit.Rabbit(t)
	topic := broker.Name("orders")
	channel := w.declare(broker.URL, topic, nil)
	w.forward(db, w.rabbit(queue(broker.URL), rabbit.PublisherConfig{}), forwarder.Config{})

	state, err := trace.ParseTraceState("vendor=1")
	kit.OK(t, err)
	ctx := trace.ContextWithRemoteSpanContext(t.Context(), trace.NewSpanContext(trace.SpanContextConfig{
		TraceID: trace.TraceID{1}, SpanID: trace.SpanID{2}, TraceFlags: trace.FlagsSampled, TraceState: state, Remote: true,
	}))
	ctx, service := w.traces.Tracer("service").Start(ctx, "place an order")
	msg := message.NewMessage("1", []byte("body"))
	msg.Metadata.Set("tracestate", "of=another")
	w.publish(ctx, db, box, topic, msg)
	service.End()
	if msg.Metadata.Get("traceparent") != "" {
		t.Error("the caller's message was changed")
	}

	var delivery amqp.Delivery
	w.eventually("the message is in the queue", func() bool {
		got, ok, err := channel.Get(topic, true)
		kit.OK(t, err)
		delivery = got
		return ok
	})
	w.eventually("three spans have ended", func() bool { return len(w.spans.GetSpans()) >= 3 })
	create, forward := w.named("outbox.publish " + topic)[0], w.named("forward " + topic)[0]
	if create.Parent.SpanID() != service.SpanContext().SpanID() || forward.Parent.SpanID() != create.SpanContext.SpanID() {
		t.Errorf("not a chain: %v, %v, %v", service.SpanContext(), create, forward)
	}
	if !forward.Parent.IsRemote() || create.SpanKind != trace.SpanKindProducer || forward.SpanKind != trace.SpanKindProducer {
		t.Errorf("kinds: %v, %v", create, forward)
	}
	if got, want := delivery.Headers["traceparent"], traceparent(forward.SpanContext); got != want {
		t.Errorf("traceparent is %v, want %v", got, want)
	}
	if got := delivery.Headers["tracestate"]; got != "vendor=1" {
		t.Errorf("tracestate is %v", got)
	}
	address, err := url.Parse(broker.URL)
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{
		"messaging.system": "rabbitmq", "server.address": address.Hostname(), "server.port": address.Port(),
		"messaging.operation.name": "forward", "messaging.operation.type": "send",
		"messaging.destination.name": topic, "messaging.message.id": "1", "messaging.message.body.size": "4",
		"once.attempt": "1", "once.outcome": "confirmed",
	}
	if got := attributes(forward); !maps.Equal(got, want) || forward.Status.Code != codes.Unset {
		t.Errorf("got %v, %v, want %v", got, forward.Status, want)
	}
	if n := len(w.spans.GetSpans()); n != 3 {
		t.Errorf("%d spans: %v", n, w.spans.GetSpans())
	}
}

// Each attempt is a span of its own. Its parent is the span in the metadata of the row.
func TestEachAttemptToSendIsASpan(t *testing.T) {
	kit.Long(t)
	t.Parallel()
	w := newWatch(t)
	db, box := w.database(), w.outbox()
	tries := make(chan string, 2)
	pub := &scripted{answer: func(_ string, msg *message.Message) error {
		tries <- msg.Metadata.Get("traceparent")
		if trace.SpanContextFromContext(msg.Context()).SpanID().String() != strings.Split(msg.Metadata.Get("traceparent"), "-")[2] {
			t.Error("the publisher is given another span in the context than in the metadata")
		}
		if state := msg.Metadata.Get("tracestate"); state != "" {
			t.Errorf("tracestate %q is of another trace", state)
		}
		if len(tries) == 1 {
			return outcomeError("refused")
		}
		return nil
	}}
	t.Cleanup(pub.running.Wait)
	ctx, service := w.traces.Tracer("service").Start(t.Context(), "service")
	msg := message.NewMessage("1", nil)
	msg.Metadata.Set("tracestate", "of=another")
	msg.SetContext(ctx)
	w.publish(t.Context(), db, box, "t", msg)
	service.End()
	metadata := func() (text string, attempts int) {
		kit.OK(t, db.QueryRowContext(t.Context(), `SELECT metadata, attempts FROM once_outbox`).Scan(&text, &attempts))
		return text, attempts
	}
	before, _ := metadata()
	w.forward(db, pub, forwarder.Config{Backoff: func(int) time.Duration { return 2 * time.Second }})
	w.eventually("the message is refused", func() bool { _, attempts := metadata(); return attempts == 1 })
	if after, _ := metadata(); after != before {
		t.Errorf("the row's metadata was %s and is %s", before, after)
	}
	w.eventually("two attempts", func() bool { return len(w.named("forward t")) == 2 })

	create, forwards := w.named("outbox.publish t")[0], w.named("forward t")
	for i, span := range forwards {
		if span.Parent.SpanID() != create.SpanContext.SpanID() {
			t.Errorf("attempt %d is a child of %v", i, span.Parent)
		}
		if got := <-tries; got != traceparent(span.SpanContext) {
			t.Errorf("attempt %d went out as %s, its span is %s", i, got, traceparent(span.SpanContext))
		}
	}
	refused := attributes(forwards[0])
	if forwards[0].Status.Code != codes.Error || refused["error.type"] != "refused" || refused["once.outcome"] != "refused" {
		t.Errorf("the refused attempt: %v, %v", forwards[0].Status, refused)
	}
	if attributes(forwards[1])["once.attempt"] != "2" || forwards[1].Status.Code != codes.Unset {
		t.Errorf("the second attempt: %v", forwards[1])
	}
}

// The trace context of a message is stored and passed on, even if the trace is not
// sampled or comes from a foreign producer.
func TestForeignAndUnrecordedTracesArePassedOn(t *testing.T) {
	t.Parallel()
	w := newWatch(t)
	db, box := w.database(), w.outbox()
	received := make(chan message.Metadata, 10)
	pub := &scripted{answer: func(_ string, msg *message.Message) error {
		received <- msg.Metadata
		return nil
	}}
	t.Cleanup(pub.running.Wait)
	w.forward(db, pub, forwarder.Config{})

	unsampled := sdk.NewTracerProvider(sdk.WithSampler(sdk.NeverSample()))
	dropped, none := unsampled.Tracer("service").Start(t.Context(), "dropped")
	defer none.End()
	sampled, span := w.traces.Tracer("service").Start(t.Context(), "service")
	defer span.End()
	brought := "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00"
	for _, c := range []struct {
		what string
		ctx  context.Context
		has  string
		want string
	}{
		{"no trace", t.Context(), "", ""},
		{"not sampled", dropped, "", traceparent(trace.SpanContextFromContext(dropped))},
		{"brought", sampled, brought, brought},
		{"garbage", t.Context(), "garbage", "garbage"},
	} {
		msg := message.NewMessage(c.what, nil)
		if c.has != "" {
			msg.Metadata.Set("traceparent", c.has)
		}
		w.publish(c.ctx, db, box, "t", msg)
		if got := (<-received).Get("traceparent"); got != c.want {
			t.Errorf("%s: traceparent %q, want %q", c.what, got, c.want)
		}
	}
	if spans := w.named("forward t"); len(spans) > 0 {
		t.Errorf("spans of traces that are not recorded: %v", spans)
	}
}

// Messages of one call with different traces keep their traces.
func TestMessagesOfOneCallKeepTheirTraces(t *testing.T) {
	t.Parallel()
	w := newWatch(t)
	db, box := w.database(), w.outbox()
	tracer := w.traces.Tracer("service")
	a, spanA := tracer.Start(t.Context(), "a")
	b, spanB := tracer.Start(t.Context(), "b")
	var msgs []*message.Message
	for i, ctx := range []context.Context{a, a, b} {
		msg := message.NewMessage(string(rune('1'+i)), nil)
		msg.SetContext(ctx)
		msgs = append(msgs, msg)
	}
	w.publish(t.Context(), db, box, "t", msgs...)
	spanA.End()
	spanB.End()

	rows, err := db.QueryContext(t.Context(), `SELECT metadata FROM once_outbox ORDER BY position`)
	kit.OK(t, err)
	defer rows.Close()
	var got []string
	for rows.Next() {
		var text []byte
		metadata := map[string]string{}
		kit.OK(t, rows.Scan(&text))
		kit.OK(t, json.Unmarshal(text, &metadata))
		got = append(got, metadata["traceparent"])
	}
	if rows.Err() != nil {
		t.Fatal(rows.Err())
	}
	create := w.named("outbox.publish t")
	if len(create) != 1 || create[0].Parent.SpanID() != spanA.SpanContext().SpanID() {
		t.Fatalf("spans of one call: %v", create)
	}
	own := traceparent(create[0].SpanContext)
	if want := []string{own, own, traceparent(spanB.SpanContext())}; !slices.Equal(got, want) {
		t.Errorf("traces %q, want %q", got, want)
	}
}

// A message that cannot be stored makes its span an error. The span contains no data of the
// message.
func TestSpanOfARefusedMessageIsAnError(t *testing.T) {
	kit.Long(t)
	t.Parallel()
	w := newWatch(t)
	ctx, service := w.traces.Tracer("service").Start(t.Context(), "service")
	defer service.End()
	tx, err := w.database().BeginTx(t.Context(), nil)
	kit.OK(t, err)
	defer func() { _ = tx.Rollback() }()
	msg := message.NewMessage("", nil)
	msg.SetContext(ctx)
	if err := w.outbox().Publisher(tx).Publish("to\xffpic", msg); err == nil {
		t.Fatal("the message was stored")
	}
	spans := w.named("outbox.publish to\uFFFDpic")
	if len(spans) != 1 || spans[0].Status.Code != codes.Error || attributes(spans[0])["error.type"] != "refused" {
		t.Errorf("spans: %v", w.spans.GetSpans())
	}
}

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
	kit.OK(t, err)
	const brought = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	msg := message.NewMessage("1", nil)
	msg.Metadata.Set("traceparent", brought)
	failed := true
	_, err = inbox.Middleware(produceAfter(&failed)(nil))(msg)
	kit.OK(t, err)
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
	text := kit.One[[]byte](t, db, `SELECT metadata FROM once_outbox`)
	metadata := map[string]string{}
	kit.OK(t, json.Unmarshal(text, &metadata))
	return metadata
}
