package recipes

import (
	"context"

	"github.com/uptrace/bun"

	"github.com/watermill-once/once/outbox"
)

// PlaceWithBun stores an order and its event in a transaction of bun. A bun.Tx contains
// the *sql.Tx that the outbox needs.
func PlaceWithBun(ctx context.Context, db *bun.DB, order Order) error {
	return db.RunInTx(ctx, nil, func(ctx context.Context, tx bun.Tx) error {
		if _, err := tx.NewInsert().Model(&order).Exec(ctx); err != nil {
			return err
		}
		event, err := placed(order)
		if err != nil {
			return err
		}
		return outbox.Publisher(tx.Tx).Publish(topic, event)
	})
}
