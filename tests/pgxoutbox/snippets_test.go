package pgxoutbox

import (
	"context"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/watermill-once/once/outbox"
	"github.com/watermill-once/once/outbox/pgxoutbox"
)

// The code of docs/drivers.md.

func _(ctx context.Context, pool *pgxpool.Pool, id string, payload []byte) error {
	err := pgxoutbox.InTx(ctx, pool, func(tx pgx.Tx, events message.Publisher) error {
		if _, err := tx.Exec(ctx, `INSERT INTO orders (id) VALUES ($1)`, id); err != nil {
			return err
		}
		return events.Publish("orders.placed", outbox.NewMessage(payload))
	})
	return err
}
