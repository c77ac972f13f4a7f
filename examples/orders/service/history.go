package service

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/ThreeDotsLabs/watermill/message"
)

// record adds an entry to the history of an order. The messages of an order are handled
// one after the other, in the order in which they were published. If one fails, the
// later messages wait until its retries have ended.
func record(ctx context.Context, tx *sql.Tx, msg *message.Message) ([]*message.Message, error) {
	order, err := decode[OrderChanged](msg)
	if err != nil {
		return nil, err
	}
	_, err = tx.ExecContext(ctx, `INSERT INTO history (order_id, message_id, version, status) VALUES ($1, $2, $3, $4)`,
		order.OrderID, msg.UUID, order.Version, order.Status)
	if err != nil {
		return nil, fmt.Errorf("history: %w", err)
	}
	return nil, nil
}
