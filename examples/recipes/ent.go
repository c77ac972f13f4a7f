package recipes

import (
	"context"
	"database/sql"
	"errors"

	"entgo.io/ent/dialect"
	entsql "entgo.io/ent/dialect/sql"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/examples/recipes/ent"
	"github.com/watermill-once/once/outbox"
)

// PlaceWithEnt stores an order and its event in a transaction of outbox.InTx. ent works
// in the same transaction.
func PlaceWithEnt(ctx context.Context, db *sql.DB, order Order) error {
	return EntTransaction(ctx, db, func(client *ent.Client, events message.Publisher) error {
		if err := client.Order.Create().SetID(order.ID).SetTotal(order.Total).Exec(ctx); err != nil {
			return err
		}
		event, err := placed(order)
		if err != nil {
			return err
		}
		return events.Publish(topic, event)
	})
}

// EntTransaction calls the function work in a transaction. The client of ent and the
// publisher that EntTransaction passes to the function use this transaction.
func EntTransaction(ctx context.Context, db *sql.DB, work func(client *ent.Client, events message.Publisher) error) error {
	return outbox.InTx(ctx, db, func(tx *sql.Tx, events message.Publisher) error {
		driver := &entTx{Driver: entsql.NewDriver(dialect.Postgres, entsql.Conn{ExecQuerier: tx})}
		err := work(ent.NewClient(ent.Driver(driver)), events)
		if err == nil && driver.undone {
			err = errNested
		}
		return err
	})
}

var errNested = errors.New("a transaction inside of EntTransaction was rolled back, so the whole transaction is")

// entTx is a driver of ent that works in a transaction. For some statements, ent itself
// begins a transaction. The method Tx then returns the driver itself, so these
// statements run in the same transaction. If ent calls Rollback, EntTransaction does
// not commit.
type entTx struct {
	dialect.Driver

	undone bool
}

// Tx implements [dialect.Driver].
func (d *entTx) Tx(context.Context) (dialect.Tx, error) { return d, nil }

// Commit implements [dialect.Tx].
func (*entTx) Commit() error { return nil }

// Rollback implements [dialect.Tx].
func (d *entTx) Rollback() error {
	d.undone = true
	return nil
}
