package service

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once"
)

// cancelOrder cancels an order whose payment was refunded. This ends the saga of an
// order that cannot be delivered.
func cancelOrder(ctx context.Context, tx *sql.Tx, msg *message.Message) ([]*message.Message, error) {
	refunded, err := decode[PaymentRefunded](msg)
	if err != nil {
		return nil, err
	}
	_, err = tx.ExecContext(ctx, `INSERT INTO cancellations (order_id, message_id) VALUES ($1, $2)`, refunded.OrderID, msg.UUID)
	if err != nil {
		return nil, fmt.Errorf("cancellations: %w", err)
	}
	status, err := changed(refunded, cancelled)
	if err != nil {
		return nil, err
	}
	return []*message.Message{once.To(TopicOrdersChanged, status)}, nil
}
