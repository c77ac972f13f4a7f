package service

import (
	"context"
	"database/sql"
	"fmt"
)

// Details is an order with its current state.
type Details struct {
	Order

	Payment     string `json:"payment"`     // "pending", "captured" or "refunded"
	Reservation string `json:"reservation"` // "pending", "reserved" or "refused"
	Shipment    string `json:"shipment"`    // "pending", "shipped" or "cancelled"
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
	// The payments may be in the database of another service. So derive their state from
	// the effects of the events that this service has received.
	err = tx.QueryRowContext(ctx, `
		SELECT shop, customer, currency, total, placed_at,
		       CASE WHEN EXISTS (SELECT 1 FROM cancellations WHERE order_id = orders.id) THEN 'refunded'
		            WHEN EXISTS (SELECT 1 FROM reservations WHERE order_id = orders.id) THEN 'captured' ELSE 'pending' END,
		       COALESCE((SELECT MAX(outcome) FROM reservations WHERE order_id = orders.id), 'pending'),
		       CASE WHEN EXISTS (SELECT 1 FROM cancellations WHERE order_id = orders.id) THEN 'cancelled'
		            WHEN EXISTS (SELECT 1 FROM shipments WHERE order_id = orders.id) THEN 'shipped' ELSE 'pending' END
		FROM orders WHERE id = $1`, id).
		Scan(&d.Shop, &d.Customer, &d.Currency, &d.Total, &d.PlacedAt, &d.Payment, &d.Reservation, &d.Shipment)
	if err != nil {
		return Details{}, fmt.Errorf("service: read order: %w", err)
	}
	d.PlacedAt = d.PlacedAt.UTC()
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
