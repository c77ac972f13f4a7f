package service

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once"
)

// capturePayment writes a payment and publishes two events about it, in the transaction
// of the message. All of them are committed, or none is.
func capturePayment(ctx context.Context, tx *sql.Tx, msg *message.Message) ([]*message.Message, error) {
	order, err := decode[OrderPlaced](msg)
	if err != nil {
		return nil, err
	}
	_, err = tx.ExecContext(ctx, `INSERT INTO payments (order_id, message_id, amount) VALUES ($1, $2, $3)`,
		order.OrderID, msg.UUID, order.Total)
	if err != nil {
		return nil, fmt.Errorf("payments: %w", err)
	}
	captured, err := newMessage(TopicPaymentsCaptured, paid, PaymentCaptured{
		OrderID: order.OrderID, Shop: order.Shop, Customer: order.Customer,
		Currency: order.Currency, Amount: order.Total,
	})
	if err != nil {
		return nil, err
	}
	status, err := changed(order, paid)
	if err != nil {
		return nil, err
	}
	return []*message.Message{once.To(TopicPaymentsCaptured, captured), once.To(TopicOrdersChanged, status)}, nil
}
