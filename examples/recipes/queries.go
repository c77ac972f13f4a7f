package recipes

import (
	"context"
	"database/sql"

	"github.com/jackc/pgx/v5/pgconn"
)

// This file has the shape of the code that sqlc generates. In a service, sqlc writes it,
// either for database/sql or for pgx/v5.

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

// PgxDBTX is DBTX for pgx/v5.
type PgxDBTX interface {
	Exec(ctx context.Context, query string, args ...any) (pgconn.CommandTag, error)
}

// PgxQueries is Queries for pgx/v5.
type PgxQueries struct{ db PgxDBTX }

// NewPgxQueries returns queries that use db.
func NewPgxQueries(db PgxDBTX) *PgxQueries { return &PgxQueries{db: db} }

// CreateOrder inserts an order.
func (q *PgxQueries) CreateOrder(ctx context.Context, arg CreateOrderParams) error {
	_, err := q.db.Exec(ctx, `INSERT INTO orders (id, total) VALUES ($1, $2)`, arg.ID, arg.Total)
	return err
}
