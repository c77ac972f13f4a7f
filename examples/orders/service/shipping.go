package service

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/ThreeDotsLabs/watermill/message"
)

// ship has paid orders shipped.
func ship(ctx context.Context, tx *sql.Tx, msg *message.Message) ([]*message.Message, error) {
	captured, err := decode[PaymentCaptured](msg)
	if err != nil {
		return nil, err
	}
	_, err = tx.ExecContext(ctx, `INSERT INTO shipments (order_id, message_id) VALUES ($1, $2)`, captured.OrderID, msg.UUID)
	if err != nil {
		return nil, fmt.Errorf("shipping: %w", err)
	}
	return nil, nil
}
