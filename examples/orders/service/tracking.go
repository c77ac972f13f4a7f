package service

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/ThreeDotsLabs/watermill/message"
)

// track stores the latest status of an order. It does not compare versions, because
// package sequence ignores a message whose version is not above the stored one.
func track(ctx context.Context, tx *sql.Tx, msg *message.Message) ([]*message.Message, error) {
	order, err := decode[OrderChanged](msg)
	if err != nil {
		return nil, err
	}
	_, err = tx.ExecContext(ctx,
		`INSERT INTO tracking (order_id, status) VALUES ($1, $2) ON CONFLICT (order_id) DO UPDATE SET status = excluded.status`,
		order.OrderID, order.Status)
	if err != nil {
		return nil, fmt.Errorf("tracking: %w", err)
	}
	return nil, nil
}
