package service_test

import (
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"go.opentelemetry.io/otel"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/watermill-once/once/examples/orders/internal/testenv"
	"github.com/watermill-once/once/examples/orders/service"
	"github.com/watermill-once/once/operate/reconcile"
)

// Orders and payments run as two services with two databases. The events of an order that
// is sold out pass between them several times, in one trace. Reconciliation across the
// two databases finds no difference. After the test has deleted a row of an inbox, it
// reports this message as missing.
func TestTwoServices(t *testing.T) { // not parallel, because it sets the global provider of traces
	spans := tracetest.NewSpanRecorder()
	before := otel.GetTracerProvider()
	otel.SetTracerProvider(sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(spans)))
	t.Cleanup(func() { otel.SetTracerProvider(before) })

	broker := broker(t)
	var both []*running
	for _, name := range []string{service.Payments, service.Orders} {
		database := postgres(t, testenv.Postgres(t))
		if err := database.Migrate(t.Context(), name); err != nil {
			t.Fatal(err)
		}
		begin(t, database)
		r := startOn(t, database, rabbitMQ(t, broker), func(c *service.Config) { c.Services = []string{name} })
		both = append(both, r)
	}
	payments, orders := both[0], both[1]

	if got := payments.order("", soldOut); got.status != http.StatusNotFound {
		t.Errorf("payments takes an order: %+v", got)
	}
	shipped := orders.placed()
	got := orders.order("", soldOut, "traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
	refused := strings.TrimPrefix(got.header.Get("Location"), "/orders/")
	testenv.Eventually(t, 3*time.Minute, "both orders have ended", func() bool {
		return orders.details(shipped).Shipment == "shipped" && orders.details(refused).Shipment == "cancelled" &&
			payments.count(`once_inbox WHERE consumer = 'notifications'`) == 3 &&
			orders.count(`once_inbox WHERE consumer IN ('history', 'tracking')`) == 12 &&
			orders.count("once_outbox") == 0 && payments.count("once_outbox") == 0
	})
	for table, r := range map[string]*running{"payments": payments, "refunds": payments, "cancellations": orders, "shipments": orders} {
		if n, want := r.count(table), 1+strings.Count(table, "payments"); n != want {
			t.Errorf("%d %s, want %d", n, table, want)
		}
	}
	if sum := payments.world.money(); sum != 1290 {
		t.Errorf("the bank has %d", sum)
	}

	var names []string // names of the spans in the trace of the second order
	for _, span := range spans.Ended() {
		if span.SpanContext().TraceID().String() == "0af7651916cd43dd8448eb211c80319c" {
			names = append(names, span.Name())
		}
	}
	for _, name := range []string{
		"POST /orders", "handle orders.placed", "handle payments.captured", "handle stock.refused",
		"handle payments.refunded", "handle mails.intended", "handle orders.changed",
	} {
		if !slices.Contains(names, name) {
			t.Errorf("%q is not in the trace: %q", name, names)
		}
	}

	// Reconciliation leaves out recent messages, so make these messages older.
	for _, r := range both {
		r.exec(`UPDATE once_outbox_sent SET sent_at = sent_at - interval '3 hours' WHERE message_id <> 'first'`)
		r.exec(`UPDATE once_inbox SET processed_at = processed_at - interval '3 hours' WHERE message_id <> 'first'`)
		r.exec(`UPDATE once_consumers SET registered_at = registered_at - interval '3 days'`)
	}
	if report := compare(t, orders, payments, service.TopicOrdersPlaced, "payments"); report.Found() || report.Sent != 2 || report.Known != 2 {
		t.Errorf("%+v", report)
	}
	report := compare(t, payments, orders, service.TopicPaymentsCaptured, "inventory")
	if report.Found() || report.Sent != 2 || report.Known != 2 {
		t.Errorf("%+v", report)
	}
	orders.exec(`DELETE FROM once_inbox WHERE consumer = 'cancellations'`)
	report = compare(t, payments, orders, service.TopicPaymentsRefunded, "cancellations")
	if len(report.Missing) != 1 || report.Missing[0].MessageID != refused+".payments.refunded" {
		t.Errorf("%+v", report)
	}
}

// begin adds a row that is 20 hours old to the sent log and to the inbox. Reconciliation
// compares only messages that are younger than the oldest row of each table.
func begin(t *testing.T, database service.Database) {
	t.Helper()
	_, err := pool(t, database).ExecContext(t.Context(), `
		INSERT INTO once_outbox_sent (message_id, topic, sent_at, created_at, position, payload, metadata)
		VALUES ('first', 'another topic', now() - interval '20 hours', now() - interval '20 hours', 1, '', '{}');
		INSERT INTO once_inbox (message_id, consumer, processed_at, digest)
		VALUES ('first', 'another consumer', now() - interval '20 hours', '')`)
	if err != nil {
		t.Fatal(err)
	}
}

// compare compares the messages that one service has sent with the messages that a
// consumer of the other service has handled.
func compare(t *testing.T, from, to *running, topic, consumer string) reconcile.Report {
	t.Helper()
	sender, err := reconcile.NewSender(from.db, reconcile.SenderConfig{
		Schema: from.tables, Topics: []string{topic}, LongestDelay: time.Minute,
	})
	if err != nil {
		t.Fatal(err)
	}
	receiver, err := reconcile.NewReceiver(to.db, reconcile.ReceiverConfig{Schema: to.tables, Consumers: []string{consumer}})
	if err != nil {
		t.Fatal(err)
	}
	reports, err := reconcile.Compare(t.Context(), sender, receiver)
	if err != nil {
		t.Fatal(err)
	}
	return reports[0]
}
