package examplestx

import (
	"context"
	"database/sql"
)

// The rest of this file is the code that sqlc generates from
//
//	-- name: CapturePayment :exec
//	INSERT INTO payments (order_id, cents) VALUES ($1, $2);

// DBTX is the interface of a connection or transaction.
type DBTX interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
	PrepareContext(ctx context.Context, query string) (*sql.Stmt, error)
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

// Queries runs the statements on a DBTX.
type Queries struct{ db DBTX }

// New returns Queries that run on db.
func New(db DBTX) *Queries { return &Queries{db: db} }

const capturePayment = `INSERT INTO payments (order_id, cents) VALUES ($1, $2)`

// CapturePaymentParams are the values of a payment.
type CapturePaymentParams struct {
	OrderID string
	Cents   int64
}

// CapturePayment inserts a payment.
func (q *Queries) CapturePayment(ctx context.Context, arg CapturePaymentParams) error {
	_, err := q.db.ExecContext(ctx, capturePayment, arg.OrderID, arg.Cents)
	return err
}
