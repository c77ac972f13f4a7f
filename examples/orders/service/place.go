package service

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"
)

// place writes the idempotency key, the order and its events in one transaction: all of
// them are committed, or none is. It returns the answer to the client. If an earlier
// request has used the key, this is the answer to the earlier request.
func (s *Service) place(ctx context.Context, r idempotentRequest, wanted NewOrder) (answer, error) {
	order, fresh, err := newOrder(wanted)
	if err != nil {
		return answer{}, err
	}
	given := fresh
	err = s.box.InTx(ctx, s.requests, func(tx *sql.Tx, events message.Publisher) error {
		if err := s.limitWait(ctx, tx); err != nil {
			return err
		}
		earlier, found, err := r.claim(ctx, tx, fresh)
		if err != nil {
			return s.keyError(err)
		}
		if found {
			given = earlier
			return nil
		}
		if err := insertOrder(ctx, tx, order); err != nil {
			return err
		}
		return publishPlaced(events, OrderPlaced{
			OrderID: order.ID, Shop: order.Shop, Customer: order.Customer,
			Currency: order.Currency, Total: order.Total, Lines: order.Lines,
		})
	}, s.forwarder.Hint)
	return given, err
}

// publishPlaced publishes the events of a new order.
func publishPlaced(events message.Publisher, e OrderPlaced) error {
	msg, err := newMessage(TopicOrdersPlaced, placed, e)
	if err != nil {
		return err
	}
	status, err := changed(e, placed)
	if err != nil {
		return err
	}
	return errors.Join(events.Publish(TopicOrdersPlaced, msg), events.Publish(TopicOrdersChanged, status))
}

// newOrder returns the order that a client wants, and the answer to the client.
func newOrder(wanted NewOrder) (Order, answer, error) {
	id, err := uuid.NewV7() // such ids ascend with time, so inserts into the indexes stay fast
	if err != nil {
		return Order{}, answer{}, fmt.Errorf("service: new id: %w", err)
	}
	order := Order{
		ID: id.String(), NewOrder: wanted, Total: wanted.total(),
		PlacedAt: time.Now().UTC().Truncate(time.Microsecond), // the precision of PostgreSQL
	}
	body, err := json.Marshal(order)
	if err != nil {
		return Order{}, answer{}, fmt.Errorf("service: encode the answer: %w", err)
	}
	return order, answer{Status: http.StatusCreated, Location: "/orders/" + order.ID, Body: body}, nil
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
