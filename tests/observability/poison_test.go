package observability

import (
	"database/sql"
	"errors"
	"maps"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"github.com/watermill-once/once/internal/chain"
	"github.com/watermill-once/once/internal/parkedrows"
	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/operate"
	"github.com/watermill-once/once/operate/quarantine"
	"github.com/watermill-once/once/poison"
	"github.com/watermill-once/once/retry"
	"github.com/watermill-once/once/schema"
)

func (w *watch) poison(db *sql.DB, config poison.Config) *poison.Store {
	w.Helper()
	config.MeterProvider, config.TracerProvider, config.Logger = w.meters, w.traces, &w.logs
	store, err := poison.New(db, config)
	kit.OK(w, err)
	return store
}

// fail quarantines a message of a consumer for a reason.
func (w *watch) fail(store *poison.Store, consumer, id, reason string, claim *parkedrows.Claim) {
	w.Helper()
	msg := message.NewMessage(id, []byte("body"))
	msg.SetContext(parkedrows.WithDelivery(w.Context(), &parkedrows.Delivery{Consumer: consumer, Topic: "t", Claim: claim}))
	_, err := store.Middleware(func(*message.Message) ([]*message.Message, error) {
		return nil, chain.Forever(reason, errors.New("no"))
	})(msg)
	kit.OK(w, err)
}

// movePoison quarantines a message for every reason, and runs every operation
// on entries.
func movePoison(w *watch, seen *seen) {
	db := w.database()
	store := w.poison(db, poison.Config{})
	entries, err := quarantine.New(db, operate.Config{ReplayToAbsent: true, MeterProvider: w.meters})
	kit.OK(w, err)
	w.zero("once.poison.")
	act := operate.Act{Actor: "ann", Why: "test"}
	for _, reason := range []string{
		poison.ReasonExhausted, poison.ReasonFailed, poison.ReasonPermanent, poison.ReasonCrashed,
		poison.ReasonInvalidID, poison.ReasonCollision, poison.ReasonUndecodable, poison.ReasonGap, poison.ReasonStale,
	} {
		w.fail(store, "payments", reason, reason, nil)
	}
	w.awaitValue(9, "once.poison.entries", "")
	page, err := entries.List(w.Context(), operate.Filter{})
	kit.OK(w, err)
	kit.OK(w, entries.Discard(w.Context(), act, page.Rows[0].ID))
	kit.OK(w, entries.Replay(w.Context(), act, page.Rows[1].ID))
	w.fail(store, "payments", page.Rows[1].MessageID, page.Rows[1].Reason, nil)
	change := func(*message.Message) error { return nil }
	kit.OK(w, kit.Err(entries.Edit(w.Context(), act, page.Rows[2].ID, change, quarantine.EditOptions{})))
	for name, want := range map[string]float64{"discarded": 1, "replayed": 1, "failed_again": 1, "edited": 1} {
		w.want(want, "once.poison."+name, "")
	}
	w.want(2, "once.poison.quarantined", "once.reason="+page.Rows[1].Reason)
	seen.look(w)
	w.exec(db, `ALTER TABLE once_parked RENAME TO elsewhere`)
	w.eventually("entries are not known", func() bool { return w.value("once.poison.entries", "") == -1 })
}

// Storing a message in quarantine is a span of its own in the trace of the
// message, whether its handler failed or was not called.
func TestQuarantineHasASpanBesideTheAttempts(t *testing.T) {
	w := newWatch(t)
	db := w.database()
	ctx, service := w.traces.Tracer("service").Start(t.Context(), "service")
	service.End()
	give := func(id string) *message.Message {
		msg := message.NewMessage(id, []byte("body"))
		msg.Metadata.Set("traceparent", traceparent(trace.SpanContextFromContext(ctx)))
		return msg
	}
	table, err := parkedrows.NewStore(db, schema.Config{})
	kit.OK(t, err)
	kit.OK(t, table.Deliver(t.Context(), "t", []string{"payments"}, give("killer")))
	w.exec(db, `UPDATE once_parked SET crashes = 2`)
	in, end := w.consume(db, func(*message.Message) error { return retry.Permanent(errHandler) })
	w.eventually("the killer is in quarantine", func() bool { return len(w.named("quarantine t")) == 1 })
	in.deliver(give("1"))
	w.exec(db, `UPDATE once_parked SET state = 'discarded' WHERE message_id = '1'`)
	in.deliver(give("1"))
	end()

	w.exec(db, `ALTER TABLE once_parked RENAME TO elsewhere`)
	msg := give("2")
	msg.SetContext(parkedrows.WithDelivery(t.Context(), &parkedrows.Delivery{Consumer: "payments", Topic: "t"}))
	_, err = w.poison(db, poison.Config{UnackedWait: time.Nanosecond}).Middleware(func(*message.Message) ([]*message.Message, error) {
		return nil, errHandler
	})(msg)
	if err == nil {
		t.Fatal("the message was stored")
	}

	spans := w.named("quarantine t")
	if len(spans) != 4 || len(w.named("handle t")) != 2 {
		t.Fatalf("%d spans: %v", len(spans), w.spans.GetSpans())
	}
	for i, want := range []map[string]string{
		{"messaging.message.id": "killer", "once.reason": "crashed", "once.outcome": "stored"}, // its payload is not read
		{"messaging.message.id": "1", "once.reason": "permanent", "once.outcome": "stored"},
		{"messaging.message.id": "1", "once.reason": "permanent", "once.outcome": "settled"},
		{"messaging.message.id": "2", "once.reason": "failed", "once.outcome": "failed", "error.type": "failed"},
	} {
		maps.Copy(want, map[string]string{
			"messaging.system": "watermill", "messaging.operation.name": "quarantine", "messaging.operation.type": "settle",
			"messaging.destination.name": "t", "messaging.consumer.group.name": "payments",
			"messaging.message.body.size": []string{"0", "4", "4", "4"}[i],
		})
		span := spans[i]
		if got := attributes(span); !maps.Equal(got, want) {
			t.Errorf("span %d has %v, want %v", i, got, want)
		}
		if (span.Status.Code == codes.Error) != (i == 3) || span.SpanKind != trace.SpanKindClient {
			t.Errorf("span %d: %v, %v", i, span.Status, span.SpanKind)
		}
		if span.Parent.SpanID() != service.SpanContext().SpanID() {
			t.Errorf("span %d is a child of %v", i, span.Parent)
		}
	}
}

// Each configured consumer has its own series. All other consumers share one series.
func TestConfiguredConsumersHaveTheirOwnSeries(t *testing.T) {
	t.Parallel()
	w := newWatch(t)
	store := w.poison(w.database(), poison.Config{Consumers: []string{"payments", "inventory", "payments"}})
	for _, consumer := range []string{"payments", "payments", "inventory", "a", "b", "other"} {
		w.fail(store, consumer, "", poison.ReasonFailed, nil)
	}
	for consumer, want := range map[string]float64{"payments": 2, "inventory": 1, "other": 3} {
		w.want(want, "once.poison.quarantined", "once.consumer="+consumer+" once.reason=failed")
	}
	if n := len(w.instruments()["once.poison.quarantined"].series); n != 3*len(chain.Reasons) {
		t.Errorf("%d series", n)
	}
}
