package recipes

import (
	"context"
	"database/sql"
	"errors"

	"github.com/jmoiron/sqlx"

	"github.com/watermill-once/once/outbox"
)

// PlaceWithSqlx stores an order and its event in a transaction of sqlx. A sqlx.Tx
// contains the *sql.Tx that the outbox needs.
func PlaceWithSqlx(ctx context.Context, db *sqlx.DB, order Order) (err error) {
	tx, err := db.BeginTxx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() {
		if failed := tx.Rollback(); !errors.Is(failed, sql.ErrTxDone) {
			err = errors.Join(err, failed)
		}
	}()
	if _, err := tx.NamedExecContext(ctx, `INSERT INTO orders (id, total) VALUES (:id, :total)`, order); err != nil {
		return err
	}
	event, err := placed(order)
	if err != nil {
		return err
	}
	if err := outbox.Publisher(tx.Tx).Publish(topic, event); err != nil {
		return err
	}
	return tx.Commit()
}
