package oncetest_test

import (
	"context"
	"database/sql"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/oncetest"
)

// This example tests a handler that inserts a payment, with two messages. In your code,
// it is the body of a test function TestPayments(t *testing.T).
func ExampleRun() { //nolint:testableexamples // it needs a test around it
	var (
		t  *testing.T
		db *sql.DB // a database for tests that contains all tables
	)
	capturePayment := func(ctx context.Context, tx *sql.Tx, msg *message.Message) ([]*message.Message, error) {
		_, err := tx.ExecContext(ctx, `INSERT INTO payments (order_id) VALUES ($1)`, string(msg.Payload))
		return nil, err
	}
	oncetest.Run(t, oncetest.Config{
		DB:      db,
		Handler: capturePayment,
		Messages: []*message.Message{
			message.NewMessage("order-17", []byte("17")),
			message.NewMessage("order-18", []byte("18")),
		},
		Reset: func(ctx context.Context, db *sql.DB) error {
			_, err := db.ExecContext(ctx, `TRUNCATE payments`)
			return err
		},
		Ignore: []string{"captured_at"},
	})
}
