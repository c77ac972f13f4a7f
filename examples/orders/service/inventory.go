package service

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"

	"github.com/ThreeDotsLabs/watermill/message"
)

// errWarehouse is an ordinary failure: an attempt is counted, the transaction is rolled
// back, and the message is tried again.
var errWarehouse = errors.New("inventory: the warehouse does not answer")

// reserveStock reserves the items of an order. About one call in twenty fails, as in a
// handler that depends on another service.
func reserveStock(ctx context.Context, tx *sql.Tx, msg *message.Message) ([]*message.Message, error) {
	placed, err := decode[OrderPlaced](msg)
	if err != nil {
		return nil, err
	}
	_, err = tx.ExecContext(ctx, `INSERT INTO reservations (order_id, message_id) VALUES ($1, $2)`, placed.OrderID, msg.UUID)
	if err != nil {
		return nil, fmt.Errorf("inventory: %w", err)
	}
	// Sort the rows, because two transactions that lock the same rows in different
	// orders deadlock.
	slices.SortFunc(placed.Lines, func(a, b Line) int { return cmp.Compare(a.SKU, b.SKU) })
	for _, line := range placed.Lines {
		_, err := tx.ExecContext(ctx,
			`INSERT INTO stock (sku, reserved) VALUES ($1, $2)
			 ON CONFLICT (sku) DO UPDATE SET reserved = stock.reserved + excluded.reserved`,
			line.SKU, line.Quantity)
		if err != nil {
			return nil, fmt.Errorf("inventory: %w", err)
		}
	}
	if rand.IntN(20) == 0 {
		return nil, errWarehouse
	}
	return nil, nil
}
