package service

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"

	"github.com/watermill-once/once/idempotency"
)

// place returns a handler that writes the order and its events, and answers with the
// order. Package idempotency calls the handler in the transaction that also stores the
// key and the answer. So either all of this is committed, or nothing.
func (s *Service) place(wanted NewOrder) idempotency.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request, tx *sql.Tx) error {
		order, err := newOrder(wanted)
		if err != nil {
			return err
		}
		if err := insertOrder(r.Context(), tx, order); err != nil {
			return err
		}
		events := s.box.Publisher(tx)
		err = publishPlaced(r.Context(), events, OrderPlaced{
			OrderID: order.ID, Shop: order.Shop, Customer: order.Customer,
			Currency: order.Currency, Total: order.Total, Lines: order.Lines,
		})
		if err != nil {
			return err
		}
		w.Header().Set("Location", "/orders/"+order.ID)
		writeJSON(w, http.StatusCreated, "application/json", order)
		return nil
	}
}

// publishPlaced publishes the events of a new order. ctx contains the trace of the
// request, which the events continue.
func publishPlaced(ctx context.Context, events message.Publisher, e OrderPlaced) error {
	msg, err := newMessage(TopicOrdersPlaced, e)
	if err != nil {
		return err
	}
	status, err := changed(e, placed)
	if err != nil {
		return err
	}
	msg.SetContext(ctx)
	status.SetContext(ctx)
	return errors.Join(events.Publish(TopicOrdersPlaced, msg), events.Publish(TopicOrdersChanged, status))
}

// newOrder returns a new order with an id and the content that a client has sent.
func newOrder(wanted NewOrder) (Order, error) {
	id, err := uuid.NewV7() // such ids ascend with time, so inserts into the indexes stay fast
	if err != nil {
		return Order{}, fmt.Errorf("service: new id: %w", err)
	}
	return Order{
		ID: id.String(), NewOrder: wanted, Total: wanted.total(),
		PlacedAt: time.Now().UTC().Truncate(time.Microsecond), // the precision of PostgreSQL
	}, nil
}

func insertOrder(ctx context.Context, tx *sql.Tx, order Order) error {
	_, err := tx.ExecContext(ctx,
		`INSERT INTO orders (id, shop, customer, currency, total, placed_at) VALUES ($1, $2, $3, $4, $5, $6)`,
		order.ID, order.Shop, order.Customer, order.Currency, order.Total, order.PlacedAt)
	if err != nil {
		return fmt.Errorf("service: insert the order: %w", err)
	}
	var (
		rows []string
		args = []any{order.ID}
	)
	for i, line := range order.Lines {
		n := len(args)
		rows = append(rows, fmt.Sprintf("($1, $%d, $%d, $%d, $%d)", n+1, n+2, n+3, n+4))
		args = append(args, i+1, line.SKU, line.Quantity, line.UnitPrice)
	}
	_, err = tx.ExecContext(ctx,
		`INSERT INTO order_lines (order_id, line, sku, quantity, unit_price) VALUES `+strings.Join(rows, ", "), args...)
	if err != nil {
		return fmt.Errorf("service: insert the order's lines: %w", err)
	}
	return nil
}
