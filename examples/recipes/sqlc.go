package recipes

import (
	"context"
	"database/sql"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/outbox"
)

// PlaceWithSqlc stores an order and its event. outbox.InTx begins the transaction, and
// the queries that sqlc has generated run in it.
func PlaceWithSqlc(ctx context.Context, db *sql.DB, queries *Queries, order Order) error {
	return outbox.InTx(ctx, db, func(tx *sql.Tx, events message.Publisher) error {
		if err := queries.WithTx(tx).CreateOrder(ctx, CreateOrderParams{ID: order.ID, Total: order.Total}); err != nil {
			return err
		}
		event, err := placed(order)
		if err != nil {
			return err
		}
		return events.Publish(topic, event)
	})
}
