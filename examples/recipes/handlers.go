package recipes

import (
	"context"
	"database/sql"
	"encoding/json"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/uptrace/bun"
)

// CopyWithSqlc is a handler for once.Consumer.AddHandler. It stores the order of an event
// with the queries that sqlc has generated for database/sql.
func CopyWithSqlc(queries *Queries) func(context.Context, *sql.Tx, *message.Message) ([]*message.Message, error) {
	return func(ctx context.Context, tx *sql.Tx, msg *message.Message) ([]*message.Message, error) {
		var order Order
		if err := json.Unmarshal(msg.Payload, &order); err != nil {
			return nil, err
		}
		return nil, queries.WithTx(tx).CreateOrder(ctx, CreateOrderParams{ID: order.ID, Total: order.Total})
	}
}

// CopyWithPgx is like CopyWithSqlc, with the queries that sqlc has generated for pgx/v5.
func CopyWithPgx(ctx context.Context, tx *sql.Tx, msg *message.Message) ([]*message.Message, error) {
	var order Order
	if err := json.Unmarshal(msg.Payload, &order); err != nil {
		return nil, err
	}
	pgxTx, err := PgxTx(ctx, tx)
	if err != nil {
		return nil, err
	}
	return nil, NewPgxQueries(pgxTx).CreateOrder(ctx, CreateOrderParams{ID: order.ID, Total: order.Total})
}

// CopyWithBun is like CopyWithSqlc, with a query of bun.
func CopyWithBun(db *bun.DB) func(context.Context, *sql.Tx, *message.Message) ([]*message.Message, error) {
	return func(ctx context.Context, tx *sql.Tx, msg *message.Message) ([]*message.Message, error) {
		var order Order
		if err := json.Unmarshal(msg.Payload, &order); err != nil {
			return nil, err
		}
		_, err := db.NewInsert().Conn(tx).Model(&order).Exec(ctx)
		return nil, err
	}
}
