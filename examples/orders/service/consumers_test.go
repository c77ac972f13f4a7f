package service

import (
	"context"
	"database/sql"
	"path/filepath"
	"slices"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once"
	"github.com/watermill-once/once/dedup"
	"github.com/watermill-once/once/examples/orders/internal/testenv"
	"github.com/watermill-once/once/oncetest"
)

// Every consumer gives the same result if messages arrive twice, at the same time, out
// of order, and after a failure of any statement of its transaction.
func TestConsumersAreSafe(t *testing.T) {
	t.Parallel()
	// short contains the consumers that are tested with -short.
	short := map[string][]string{"postgres": {"payments"}, "sqlite": {"refunds"}}
	for name, open := range map[string]func(t *testing.T) (Database, error){
		"postgres": func(t *testing.T) (Database, error) { return Postgres(testenv.Postgres(t), "shop") },
		"sqlite":   func(t *testing.T) (Database, error) { return SQLite(filepath.Join(t.TempDir(), "orders.db")) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			database, err := open(t)
			if err != nil {
				t.Fatal(err)
			}
			if err := database.Migrate(t.Context()); err != nil {
				t.Fatal(err)
			}
			pool := database.Pool(4)
			t.Cleanup(func() { _ = pool.Close() })
			s := &Service{bank: aBank{}}
			for consumer, c := range map[string]struct {
				handle   once.HandlerFunc
				messages []*message.Message
			}{
				"payments":      {s.capturePayment, placedOrders(t)},
				"inventory":     {reserveStock, paidOrders(t)},
				"shipping":      {ship, reservedOrders(t)},
				"refunds":       {s.refund, refusedOrders(t)},
				"cancellations": {cancelOrder, refundedOrders(t)},
				"history":       {record, changedOrders(t)},
			} {
				if testing.Short() && !slices.Contains(short[name], consumer) {
					continue // this consumer works like the other ones
				}
				t.Run(consumer, func(t *testing.T) {
					oncetest.Run(t, oncetest.Config{
						DB:       pool,
						Handler:  c.handle,
						Messages: c.messages,
						Reset:    reset,
						Ignore:   []string{"captured_at", "reserved_at", "shipped_at", "refunded_at", "cancelled_at", "written_at", "entry"},
						Dedup:    dedup.Config{Schema: database.Tables, Consumer: consumer},
					})
				})
			}
		})
	}
}

// placedOrders returns the events of two orders that contain the same item, so that
// their handlers update the same row of the stock.
func placedOrders(t *testing.T) []*message.Message {
	t.Helper()
	return messages(t, TopicOrdersPlaced,
		OrderPlaced{OrderID: "17", Shop: "berlin", Customer: "Ada", Currency: "EUR", Total: 1290, Lines: []Line{
			{SKU: "tea", Quantity: 2, UnitPrice: 450}, {SKU: "cake", Quantity: 1, UnitPrice: 390},
		}},
		OrderPlaced{OrderID: "18", Shop: "berlin", Customer: "Bob", Currency: "EUR", Total: 450, Lines: []Line{
			{SKU: "tea", Quantity: 1, UnitPrice: 450},
		}})
}

func paidOrders(t *testing.T) []*message.Message {
	t.Helper()
	return messages(t, TopicPaymentsCaptured,
		PaymentCaptured{OrderID: "17", Shop: "berlin", Customer: "Ada", Currency: "EUR", Amount: 1290},
		PaymentCaptured{OrderID: "18", Shop: "berlin", Customer: "Bob", Currency: "EUR", Amount: 450},
		PaymentCaptured{OrderID: "19", Shop: "berlin", Customer: "Cem", Currency: "EUR", Amount: 99})
}

func reservedOrders(t *testing.T) []*message.Message {
	t.Helper()
	return messages(t, TopicStockReserved,
		StockReserved{OrderID: "17", Shop: "berlin", Currency: "EUR", Amount: 1290},
		StockReserved{OrderID: "18", Shop: "berlin", Currency: "EUR", Amount: 450})
}

// refusedOrders returns two events. Each says that the stock for an order was refused.
// Both orders are paid, because [reset] writes their payments.
func refusedOrders(t *testing.T) []*message.Message {
	t.Helper()
	return messages(t, TopicStockRefused,
		StockRefused{OrderID: "41", Shop: "berlin", SKU: "unicorn"},
		StockRefused{OrderID: "42", Shop: "berlin", SKU: "unicorn"})
}

func refundedOrders(t *testing.T) []*message.Message {
	t.Helper()
	return messages(t, TopicPaymentsRefunded,
		PaymentRefunded{OrderID: "41", Shop: "berlin", Currency: "EUR", Amount: 990},
		PaymentRefunded{OrderID: "42", Shop: "berlin", Currency: "EUR", Amount: 490})
}

func changedOrders(t *testing.T) (all []*message.Message) {
	t.Helper()
	for _, status := range []string{placed, paid, shipped} {
		msg, err := changed(OrderPlaced{OrderID: "17", Shop: "berlin"}, status)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, msg)
	}
	return all
}

func messages[E event](t *testing.T, topic string, events ...E) []*message.Message {
	t.Helper()
	var all []*message.Message
	for _, e := range events {
		msg, err := newMessage(topic, e)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, msg)
	}
	return all
}

// reset empties the tables. Then it writes the order lines of three orders, and the
// payments of two other orders. The third of the three orders cannot be delivered.
func reset(ctx context.Context, db *sql.DB) error {
	_, err := db.ExecContext(ctx, `
		DELETE FROM payments; DELETE FROM refunds; DELETE FROM reservations; DELETE FROM shipments; DELETE FROM cancellations;
		DELETE FROM history; DELETE FROM order_lines; DELETE FROM orders;
		UPDATE stock SET reserved = 0;
		INSERT INTO orders (id, shop, customer, currency, total, placed_at) VALUES
			('17', 'berlin', 'Ada', 'EUR', 1290, '2026-01-01'), ('18', 'berlin', 'Bob', 'EUR', 450, '2026-01-01'),
			('19', 'berlin', 'Cem', 'EUR', 99, '2026-01-01');
		INSERT INTO order_lines (order_id, line, sku, quantity, unit_price) VALUES
			('17', 1, 'tea', 2, 450), ('17', 2, 'cake', 1, 390), ('18', 1, 'tea', 1, 450),
			('19', 1, 'tea', 3, 33), ('19', 2, 'unicorn', 1, 0);
		INSERT INTO payments (order_id, message_id, customer, currency, amount, captured_at) VALUES
			('41', 'a', 'Ada', 'EUR', 990, '2026-01-01'), ('42', 'b', 'Bob', 'EUR', 490, '2026-01-01')`)
	return err
}

// aBank accepts every call.
type aBank struct{}

func (aBank) Charge(context.Context, string, string, int64) error { return nil }
func (aBank) Refund(context.Context, string, string, int64) error { return nil }
