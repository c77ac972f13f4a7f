package recipes

import (
	"context"
	"database/sql"
)

// This file has the shape of the code that sqlc generates. In a service, sqlc writes it.

// DBTX is a database or a transaction that executes queries.
type DBTX interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
}

// Queries contains the queries of the service.
type Queries struct{ db DBTX }

// NewQueries returns queries that use db.
func NewQueries(db DBTX) *Queries { return &Queries{db: db} }

// WithTx returns the same queries, in a transaction.
func (*Queries) WithTx(tx *sql.Tx) *Queries { return &Queries{db: tx} }

// CreateOrderParams contains the values of CreateOrder.
type CreateOrderParams struct {
	ID    string
	Total int64
}

// CreateOrder inserts an order.
func (q *Queries) CreateOrder(ctx context.Context, arg CreateOrderParams) error {
	_, err := q.db.ExecContext(ctx, `INSERT INTO orders (id, total) VALUES ($1, $2)`, arg.ID, arg.Total)
	return err
}
