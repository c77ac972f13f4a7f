package service

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once"
)

// ship ships an order whose items are reserved, and publishes an event about it. It
// writes only to the database, so nothing bad happens if a call is rolled back and
// repeated. Therefore ship may share a transaction with other messages.
func ship(ctx context.Context, tx *sql.Tx, msg *message.Message) ([]*message.Message, error) {
	reserved, err := decode[StockReserved](msg)
	if err != nil {
		return nil, err
	}
	_, err = tx.ExecContext(ctx, `INSERT INTO shipments (order_id, message_id) VALUES ($1, $2)`, reserved.OrderID, msg.UUID)
	if err != nil {
		return nil, fmt.Errorf("shipping: %w", err)
	}
	status, err := changed(reserved, shipped)
	if err != nil {
		return nil, err
	}
	return []*message.Message{once.To(TopicOrdersChanged, status)}, nil
}
