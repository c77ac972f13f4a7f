package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
)

// idles measures whether an idle transaction in another database of the server stops
// delivery.
func (b *bench) idles(ctx context.Context) ([]row, error) {
	kind := b.kinds[0]
	var (
		none  = series{id: "idle-none", what: "forwarder, " + kind, unit: perSecond}
		ours  = series{id: "idle-open", what: "the same, an idle write transaction open in another database", unit: perSecond}
		stock = series{id: "idle-stock", what: fmt.Sprintf("stock forwarder likewise, within %v", b.stopped), unit: perSecond}
	)
	err := b.turns(
		ctx,
		single(&none, func(ctx context.Context) (float64, error) { return b.drainFilled(ctx, kind, b.messages, 0) }),
		single(&ours, func(ctx context.Context) (value float64, err error) {
			tx, err := b.writeTransaction(ctx)
			if err != nil {
				return 0, err
			}
			defer closing(tx, &err)
			return b.drainFilled(ctx, kind, b.messages, 0)
		}),
		single(&stock, func(ctx context.Context) (float64, error) { return b.stockStopped(ctx, kind) }),
	)
	if err != nil {
		return nil, err
	}
	return []row{none.row(), ours.against(none, 0), stock.row()}, nil
}

// openTransaction is an idle transaction that has a transaction id, like a transaction
// that has written.
type openTransaction struct {
	db *sql.DB
	tx *sql.Tx
}

func (b *bench) writeTransaction(ctx context.Context) (*openTransaction, error) {
	db, err := open(b.pgDSN)
	if err != nil {
		return nil, err
	}
	tx, err := db.BeginTx(context.WithoutCancel(ctx), nil)
	if err != nil {
		return nil, errors.Join(err, db.Close())
	}
	if _, err := tx.ExecContext(ctx, `SELECT txid_current()`); err != nil { // assigns a transaction id, as a write does
		return nil, errors.Join(err, tx.Rollback(), db.Close())
	}
	return &openTransaction{db, tx}, nil
}

// Close rolls the transaction back and closes its pool. It may be called more than
// once.
func (t *openTransaction) Close() error {
	err := t.tx.Rollback()
	if errors.Is(err, sql.ErrTxDone) {
		err = nil
	}
	return errors.Join(err, t.db.Close())
}

// stockStopped measures how many messages per second Watermill's forwarder delivers
// while a transaction is open. It also checks that the forwarder continues after the
// transaction has ended.
func (b *bench) stockStopped(ctx context.Context, kind string) (_ float64, err error) {
	const few = 100
	tx, err := b.writeTransaction(ctx)
	if err != nil {
		return 0, err
	}
	defer closing(tx, &err)
	s, err := b.newScene(ctx, kind)
	if err != nil {
		return 0, err
	}
	defer closing(s, &err)
	if err := s.fillStock(ctx, few); err != nil {
		return 0, err
	}
	f, err := s.forwardStock(few)
	if err != nil {
		return 0, err
	}
	defer closing(f, &err)
	f.start(ctx)
	if _, err := f.await(ctx, b.stopped); err != nil {
		return 0, err
	}
	delivered := int(f.publisher.confirmed.Load())
	if err := tx.Close(); err != nil {
		return 0, err
	}
	if reached, err := f.await(ctx, stockPatience); err != nil {
		return 0, err
	} else if !reached {
		return 0, fmt.Errorf("nor did it deliver within %v after the transaction had ended", stockPatience)
	}
	return rate(delivered, b.stopped), nil
}
