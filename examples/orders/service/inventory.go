package service

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once"
	"github.com/watermill-once/once/retry"
)

// errWarehouse is an ordinary failure: an attempt is counted, the transaction is rolled
// back, and the message is tried again.
var errWarehouse = errors.New("inventory: the warehouse does not answer")

// errUnknownOrder is permanent, because another attempt would not find the order
// either: an order is always written before it is paid.
var errUnknownOrder = errors.New("inventory: no such order")

// reserveStock reserves the items of a paid order, or refuses the order if one of them is
// sold out. A refusal is an answer and not a failure: another attempt would not help. So
// reserveStock returns no error, but an event that causes the refund.
//
// About one call in twenty fails, as in a handler that depends on another service.
func reserveStock(ctx context.Context, tx *sql.Tx, msg *message.Message) ([]*message.Message, error) {
	payment, err := decode[PaymentCaptured](msg)
	if err != nil {
		return nil, err
	}
	soldOut, err := reserve(ctx, tx, payment.OrderID)
	if err != nil {
		return nil, err
	}
	outcome, topic := "reserved", TopicStockReserved
	var answer event = StockReserved{OrderID: payment.OrderID, Shop: payment.Shop, Currency: payment.Currency, Amount: payment.Amount}
	if soldOut != "" {
		outcome, topic = "refused", TopicStockRefused
		answer = StockRefused{OrderID: payment.OrderID, Shop: payment.Shop, SKU: soldOut}
	}
	_, err = tx.ExecContext(ctx, `INSERT INTO reservations (order_id, message_id, outcome) VALUES ($1, $2, $3)`,
		payment.OrderID, msg.UUID, outcome)
	if err != nil {
		return nil, fmt.Errorf("inventory: %w", err)
	}
	if rand.IntN(20) == 0 {
		return nil, errWarehouse
	}
	status, err := changed(payment, paid)
	if err != nil {
		return nil, err
	}
	answered, err := newMessage(topic, answer)
	if err != nil {
		return nil, err
	}
	return []*message.Message{once.To(TopicOrdersChanged, status), once.To(topic, answered)}, nil
}

// reserve reserves all items of an order. If an item is sold out, reserve reserves
// nothing and returns this item.
func reserve(ctx context.Context, tx *sql.Tx, order string) (soldOut string, err error) {
	lines, err := itemsOf(ctx, tx, order)
	if err != nil {
		return "", fmt.Errorf("inventory: read the items: %w", err)
	}
	if len(lines) == 0 {
		return "", retry.Permanent(fmt.Errorf("%w: %s", errUnknownOrder, order))
	}
	if _, err := tx.ExecContext(ctx, `SAVEPOINT reserving`); err != nil {
		return "", fmt.Errorf("inventory: %w", err)
	}
	for _, line := range lines {
		result, err := tx.ExecContext(ctx,
			`UPDATE stock SET reserved = reserved + $2 WHERE sku = $1 AND reserved + $2 <= on_hand`, line.SKU, line.Quantity)
		if err != nil {
			return "", fmt.Errorf("inventory: %w", err)
		}
		if found, err := result.RowsAffected(); err != nil || found > 0 {
			if err != nil {
				return "", fmt.Errorf("inventory: %w", err)
			}
			continue
		}
		// The transaction will be committed, so the items that are reserved already must
		// be given back.
		if _, err := tx.ExecContext(ctx, `ROLLBACK TO SAVEPOINT reserving`); err != nil {
			return "", fmt.Errorf("inventory: %w", err)
		}
		return line.SKU, nil
	}
	return "", nil
}

// itemsOf returns how many of each item an order needs. The items are sorted, because
// two transactions that lock the same rows of the stock in different orders deadlock.
func itemsOf(ctx context.Context, tx *sql.Tx, order string) ([]Line, error) {
	rows, err := tx.QueryContext(ctx,
		`SELECT sku, CAST(SUM(quantity) AS bigint) FROM order_lines WHERE order_id = $1 GROUP BY sku ORDER BY sku`, order)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var lines []Line
	for rows.Next() {
		var line Line
		if err := rows.Scan(&line.SKU, &line.Quantity); err != nil {
			return nil, err
		}
		lines = append(lines, line)
	}
	return lines, rows.Err()
}
