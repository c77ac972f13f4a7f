package recipes

import (
	"context"
	"database/sql"

	"entgo.io/ent/dialect"
	entsql "entgo.io/ent/dialect/sql"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/outbox"
)

// PlaceWithEnt stores an order and its event. outbox.InTx begins the transaction, and
// ent works in it. In a service, make a client of your generated code with the driver:
//
//	client := ent.NewClient(ent.Driver(driver))
func PlaceWithEnt(ctx context.Context, db *sql.DB, order Order) error {
	return outbox.InTx(ctx, db, func(tx *sql.Tx, events message.Publisher) error {
		driver := entsql.NewDriver(dialect.Postgres, entsql.Conn{ExecQuerier: tx})
		query, args := entsql.Dialect(dialect.Postgres).
			Insert("orders").Columns("id", "total").Values(order.ID, order.Total).Query()
		if err := driver.Exec(ctx, query, args, nil); err != nil {
			return err
		}
		event, err := placed(order)
		if err != nil {
			return err
		}
		return events.Publish(topic, event)
	})
}
