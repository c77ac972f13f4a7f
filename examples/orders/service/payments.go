package service

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once"
)

// capturePayment writes a payment and publishes that it did, in the message's
// transaction: neither exists without the other.
func capturePayment(ctx context.Context, tx *sql.Tx, msg *message.Message) ([]*message.Message, error) {
	placed, err := decode[OrderPlaced](msg)
	if err != nil {
		return nil, err
	}
	_, err = tx.ExecContext(ctx, `INSERT INTO payments (order_id, message_id, amount) VALUES ($1, $2, $3)`,
		placed.OrderID, msg.UUID, placed.Total)
	if err != nil {
		return nil, fmt.Errorf("payments: %w", err)
	}
	captured, err := newMessage(TopicPaymentsCaptured, 2, PaymentCaptured{
		OrderID: placed.OrderID, Shop: placed.Shop, Customer: placed.Customer,
		Currency: placed.Currency, Amount: placed.Total,
	})
	if err != nil {
		return nil, err
	}
	return []*message.Message{once.To(TopicPaymentsCaptured, captured)}, nil
}
