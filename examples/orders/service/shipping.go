package service

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once"
)

// ship has paid orders shipped, and publishes that it did. It writes to the
// database alone, so that calling it again costs nothing: it may share its
// transaction.
func ship(ctx context.Context, tx *sql.Tx, msg *message.Message) ([]*message.Message, error) {
	captured, err := decode[PaymentCaptured](msg)
	if err != nil {
		return nil, err
	}
	_, err = tx.ExecContext(ctx, `INSERT INTO shipments (order_id, message_id) VALUES ($1, $2)`, captured.OrderID, msg.UUID)
	if err != nil {
		return nil, fmt.Errorf("shipping: %w", err)
	}
	status, err := changed(captured, shipped)
	if err != nil {
		return nil, err
	}
	return []*message.Message{once.To(TopicOrdersChanged, status)}, nil
}
