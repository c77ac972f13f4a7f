package service

import (
	"context"
	"database/sql"
	"path/filepath"
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
			for consumer, c := range map[string]struct {
				handle   once.HandlerFunc
				messages []*message.Message
			}{
				"payments":  {capturePayment, placedOrders(t)},
				"inventory": {reserveStock, placedOrders(t)},
				"shipping":  {ship, paidOrders(t)},
				"history":   {record, changedOrders(t)},
			} {
				t.Run(consumer, func(t *testing.T) {
					oncetest.Run(t, oncetest.Config{
						DB:       pool,
						Handler:  c.handle,
						Messages: c.messages,
						Reset:    reset,
						Ignore:   []string{"captured_at", "reserved_at", "shipped_at", "written_at", "entry"},
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
		PaymentCaptured{OrderID: "18", Shop: "berlin", Customer: "Bob", Currency: "EUR", Amount: 450})
}

func changedOrders(t *testing.T) (all []*message.Message) {
	t.Helper()
	for _, version := range []int64{placed, paid, shipped} {
		msg, err := changed(OrderPlaced{OrderID: "17", Shop: "berlin"}, version)
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
		msg, err := newMessage(topic, 1, e)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, msg)
	}
	return all
}

// reset empties the tables, and reserves some stock.
func reset(ctx context.Context, db *sql.DB) error {
	_, err := db.ExecContext(ctx, `
		DELETE FROM payments; DELETE FROM reservations; DELETE FROM shipments; DELETE FROM stock; DELETE FROM history;
		INSERT INTO stock (sku, reserved) VALUES ('tea', 40)`)
	return err
}
