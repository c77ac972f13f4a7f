package service

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/ThreeDotsLabs/watermill/message"
)

// track keeps the latest status of an order. It need not look whether the
// message is newer than what is there: it is not called if it is older.
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
