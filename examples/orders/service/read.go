package service

import (
	"context"
	"database/sql"
	"fmt"
)

// Details is an order with its current state.
type Details struct {
	Order

	Payment     string `json:"payment"`     // "pending" or "captured"
	Reservation string `json:"reservation"` // "pending" or "reserved"
	Shipment    string `json:"shipment"`    // "pending" or "shipped"
}

// details reads an order. It returns sql.ErrNoRows if the order does not exist. Both
// queries run in one transaction, because behind a pooler that shares connections, a
// statement with arguments is not safe outside of a transaction.
func (s *Service) details(ctx context.Context, id string) (Details, error) {
	tx, err := s.requests.BeginTx(ctx, &sql.TxOptions{ReadOnly: true})
	if err != nil {
		return Details{}, fmt.Errorf("service: read order: %w", err)
	}
	defer func() { _ = tx.Rollback() }() // there is nothing to commit

	d := Details{Order: Order{ID: id}}
	var paid, reserved, shipped bool
	err = tx.QueryRowContext(ctx, `
		SELECT shop, customer, currency, total, placed_at,
		       EXISTS (SELECT 1 FROM payments WHERE order_id = orders.id),
		       EXISTS (SELECT 1 FROM reservations WHERE order_id = orders.id),
		       EXISTS (SELECT 1 FROM shipments WHERE order_id = orders.id)
		FROM orders WHERE id = $1`, id).
		Scan(&d.Shop, &d.Customer, &d.Currency, &d.Total, &d.PlacedAt, &paid, &reserved, &shipped)
	if err != nil {
		return Details{}, fmt.Errorf("service: read order: %w", err)
	}
	d.PlacedAt = d.PlacedAt.UTC()
	d.Payment = status(paid, "captured")
	d.Reservation = status(reserved, "reserved")
	d.Shipment = status(shipped, "shipped")
	if d.Lines, err = readLines(ctx, tx, id); err != nil {
		return Details{}, fmt.Errorf("service: read the order's lines: %w", err)
	}
	return d, nil
}

func readLines(ctx context.Context, tx *sql.Tx, order string) ([]Line, error) {
	rows, err := tx.QueryContext(ctx, `SELECT sku, quantity, unit_price FROM order_lines WHERE order_id = $1 ORDER BY line`, order)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var lines []Line
	for rows.Next() {
		var line Line
		if err := rows.Scan(&line.SKU, &line.Quantity, &line.UnitPrice); err != nil {
			return nil, err
		}
		lines = append(lines, line)
	}
	return lines, rows.Err()
}

func status(done bool, word string) string {
	if done {
		return word
	}
	return "pending"
}
