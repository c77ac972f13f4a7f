package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	wsql "github.com/ThreeDotsLabs/watermill-sql/v3/pkg/sql"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/outbox"
	"github.com/watermill-once/once/schema"
)

// writers is the number of producers that write at the same time.
const writers = 8

// producers measures by how much an event slows down its transaction. No forwarder runs
// meanwhile.
func (b *bench) producers(ctx context.Context) ([]row, error) {
	var (
		bare    = series{id: "producer-bare", what: fmt.Sprintf("business transactions of %d writers, no event", writers), unit: "tx/s"}
		ours    = series{id: "producer-outbox", what: "the same with an event in the outbox", unit: "tx/s"}
		stock   = series{id: "producer-stock", what: "the same with an event by watermill-sql's publisher", unit: "tx/s"}
		empty   = series{id: "producer-empty", what: "the same with a statement that does nothing", unit: "tx/s"}
		pgxBare = series{id: "producer-pgx-bare", what: "business transactions with pgx, no event", unit: "tx/s"}
		pgxOurs = series{id: "producer-pgx", what: "the same with an event through pgxoutbox", unit: "tx/s"}
	)
	err := b.turns(
		ctx,
		single(&bare, func(ctx context.Context) (float64, error) { return b.produced(ctx, transaction) }),
		single(&ours, func(ctx context.Context) (float64, error) { return b.produced(ctx, transactionWithOutbox) }),
		single(&stock, func(ctx context.Context) (float64, error) { return b.produced(ctx, transactionWithStock) }),
		single(&empty, func(ctx context.Context) (float64, error) { return b.produced(ctx, transactionWithNothing) }),
		single(&pgxBare, func(ctx context.Context) (float64, error) { return b.produced(ctx, transactionOfPgx) }),
		single(&pgxOurs, func(ctx context.Context) (float64, error) { return b.produced(ctx, transactionWithPgxOutbox) }),
	)
	if err != nil {
		return nil, err
	}
	return []row{
		bare.row(), ours.against(bare, 0.75), stock.against(bare, 0), empty.against(bare, 0),
		pgxBare.row(), pgxOurs.against(pgxBare, 0.88),
	}, nil
}

const createOrders = `
	CREATE TABLE orders (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, customer text NOT NULL, total bigint NOT NULL)`

// business inserts an order. Every measured transaction does this write.
func business(ctx context.Context, tx *sql.Tx) error {
	_, err := tx.ExecContext(ctx, `INSERT INTO orders (customer, total) VALUES ($1, $2)`, "a customer's name", 4200)
	return err
}

func transaction(ctx context.Context, db *database) error {
	return inTx(ctx, db.DB, func(tx *sql.Tx) error { return business(ctx, tx) })
}

func transactionWithOutbox(ctx context.Context, db *database) error {
	return outbox.InTx(ctx, db.DB, func(tx *sql.Tx, events message.Publisher) error {
		if err := business(ctx, tx); err != nil {
			return err
		}
		return events.Publish(stockTopic, newMessage())
	})
}

func transactionWithStock(ctx context.Context, db *database) error {
	return inTx(ctx, db.DB, func(tx *sql.Tx) error {
		if err := business(ctx, tx); err != nil {
			return err
		}
		events, err := wsql.NewPublisher(tx, wsql.PublisherConfig{SchemaAdapter: wsql.DefaultPostgreSQLSchema{}}, watermill.NopLogger{})
		if err != nil {
			return err
		}
		return events.Publish(stockTopic, newMessage())
	})
}

// transactionWithNothing has an additional round trip that does no work. It separates
// the cost of a round trip from the cost of an event.
func transactionWithNothing(ctx context.Context, db *database) error {
	return inTx(ctx, db.DB, func(tx *sql.Tx) error {
		if err := business(ctx, tx); err != nil {
			return err
		}
		_, err := tx.ExecContext(ctx, `SELECT 1`)
		return err
	})
}

func inTx(ctx context.Context, db *sql.DB, work func(tx *sql.Tx) error) error {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	if err := work(tx); err != nil {
		return errors.Join(err, tx.Rollback())
	}
	return tx.Commit()
}

// produced measures how many transactions per second the writers commit.
func (b *bench) produced(ctx context.Context, once func(ctx context.Context, db *database) error) (_ float64, err error) {
	db, err := newDatabase(ctx, b.pgDSN)
	if err != nil {
		return 0, err
	}
	defer closing(db, &err)
	if err := db.prepareProducers(ctx); err != nil {
		return 0, err
	}
	if err := db.produce(ctx, 100*time.Millisecond, once, new(atomic.Int64)); err != nil { // opens the connections
		return 0, err
	}
	if _, err := db.ExecContext(ctx, `CHECKPOINT`); err != nil {
		return 0, err
	}
	var committed atomic.Int64
	start := time.Now()
	if err := db.produce(ctx, b.producing, once, &committed); err != nil {
		return 0, err
	}
	return rate(int(committed.Load()), time.Since(start)), nil
}

func (d *database) prepareProducers(ctx context.Context) error {
	if err := schema.Up(ctx, d.DB, schema.Config{}); err != nil {
		return err
	}
	stock, err := wsql.NewPublisher(d.DB, wsql.PublisherConfig{
		SchemaAdapter: wsql.DefaultPostgreSQLSchema{}, AutoInitializeSchema: true,
	}, watermill.NopLogger{})
	if err != nil {
		return err
	}
	if err := stock.Publish(stockTopic, newMessage()); err != nil { // creates the publisher's table
		return err
	}
	_, err = d.ExecContext(ctx, createOrders)
	return err
}

func (d *database) produce(
	ctx context.Context, period time.Duration, once func(ctx context.Context, db *database) error, committed *atomic.Int64,
) error {
	var (
		working sync.WaitGroup
		errs    [writers]error
	)
	end := time.Now().Add(period)
	for n := range writers {
		working.Go(func() {
			for time.Now().Before(end) && errs[n] == nil {
				if errs[n] = once(ctx, d); errs[n] == nil {
					committed.Add(1)
				}
			}
		})
	}
	working.Wait()
	return errors.Join(errs[:]...)
}
