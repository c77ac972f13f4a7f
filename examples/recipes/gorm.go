package recipes

import (
	"context"
	"database/sql"
	"fmt"

	"gorm.io/gorm"

	"github.com/watermill-once/once/outbox"
)

// PlaceWithGORM stores an order and its event in a transaction of GORM.
func PlaceWithGORM(ctx context.Context, db *gorm.DB, order Order) error {
	return db.WithContext(ctx).Transaction(func(db *gorm.DB) error {
		if err := db.Create(&order).Error; err != nil {
			return err
		}
		event, err := placed(order)
		if err != nil {
			return err
		}
		tx, err := gormTx(db)
		if err != nil {
			return err
		}
		return outbox.Publisher(tx).Publish(topic, event)
	})
}

// gormTx returns the transaction that db uses. With PrepareStmt, GORM wraps the
// transaction.
func gormTx(db *gorm.DB) (*sql.Tx, error) {
	pool := db.Statement.ConnPool
	if prepared, ok := pool.(*gorm.PreparedStmtTX); ok {
		pool = prepared.Tx
	}
	tx, ok := pool.(*sql.Tx)
	if !ok {
		return nil, fmt.Errorf("GORM has no transaction here, but %T: use db.Transaction", pool)
	}
	return tx, nil
}
