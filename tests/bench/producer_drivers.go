package main

import (
	"context"
	"database/sql"
	"errors"

	"github.com/ThreeDotsLabs/watermill"
	wsql "github.com/ThreeDotsLabs/watermill-sql/v3/pkg/sql"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/lib/pq"

	"github.com/watermill-once/once/outbox"
	"github.com/watermill-once/once/outbox/lazytx"
	"github.com/watermill-once/once/outbox/pgxoutbox"
)

// producerDriver is a way to connect to PostgreSQL, with the transactions that are
// measured.
type producerDriver struct {
	name, what string
	open       func(ctx context.Context, dsn string) (pools, error)
	kinds      []producerKind
}

// producerKind is a kind of transaction. It is compared with the transaction without an
// event. For each number of writers, the field floors contains the lowest allowed ratio
// of the rates, and the field limits the highest allowed additional processor time, in
// microseconds.
type producerKind struct {
	name, what     string
	once           func(ctx context.Context, p pools) error
	floors, limits map[int]float64
}

// pools contains one pool, either of database/sql or of pgx.
type pools struct {
	db  *sql.DB
	pgx *pgxpool.Pool
}

func (p pools) Close() {
	if p.db != nil {
		_ = p.db.Close()
	}
	if p.pgx != nil {
		p.pgx.Close()
	}
}

const stockKind = "stock"

func producerDrivers() []producerDriver {
	bare := producerKind{name: "bare", what: "business transaction", once: transaction}
	event := func(floors map[int]float64) producerKind {
		return producerKind{name: "event", what: "the same with an event", once: transactionWithOutbox, floors: floors}
	}
	stock := producerKind{name: stockKind, what: "the same with an event by watermill-sql's publisher", once: transactionWithStock}
	empty := producerKind{name: "empty", what: "the same with a statement that does nothing", once: transactionWithNothing}
	return []producerDriver{
		{"pq", "lib/pq", openPq(false), []producerKind{bare, event(map[int]float64{8: 0.76}), stock, empty}},
		{"lazytx", "lib/pq with lazytx", openPq(true), []producerKind{bare, event(map[int]float64{1: 0.85, 8: 0.90}), stock}},
		{"pgx", "pgx's database/sql", openStdlib(false), []producerKind{bare, event(nil), stock}},
		{"pgx-lazytx", "pgx's database/sql with lazytx", openStdlib(true), []producerKind{bare, event(map[int]float64{1: 0.78, 8: 0.88}), stock}},
		{"pgxpool", "pgxpool", openPgxPool, []producerKind{
			{name: "bare", what: bare.what, once: transactionOfPgx},
			{
				name: "event", what: "the same with an event", once: transactionWithPgxOutbox,
				floors: map[int]float64{1: 0.78, 8: 0.88}, limits: map[int]float64{8: 70},
			},
		}},
	}
}

// producing is the size of a pool. It is enough for 32 writers, each with its own
// connection.
const producing = 32

func producersOf(db *sql.DB) pools {
	db.SetMaxOpenConns(producing)
	db.SetMaxIdleConns(producing)
	return pools{db: db}
}

func openPq(lazy bool) func(ctx context.Context, dsn string) (pools, error) {
	return func(_ context.Context, dsn string) (pools, error) {
		connector, err := pq.NewConnector(dsn)
		if err != nil {
			return pools{}, err
		}
		if lazy {
			return producersOf(sql.OpenDB(lazytx.Connector(connector))), nil
		}
		return producersOf(sql.OpenDB(connector)), nil
	}
}

func openStdlib(lazy bool) func(ctx context.Context, dsn string) (pools, error) {
	return func(_ context.Context, dsn string) (pools, error) {
		config, err := pgx.ParseConfig(dsn)
		if err != nil {
			return pools{}, err
		}
		connector := stdlib.GetConnector(*config)
		if lazy {
			connector = lazytx.Connector(connector)
		}
		return producersOf(sql.OpenDB(connector)), nil
	}
}

func openPgxPool(ctx context.Context, dsn string) (pools, error) {
	config, err := pgxpool.ParseConfig(dsn)
	if err != nil {
		return pools{}, err
	}
	config.MaxConns = producing
	pool, err := pgxpool.NewWithConfig(ctx, config)
	return pools{pgx: pool}, err
}

const insertOrder = `INSERT INTO orders (customer, total) VALUES ($1, $2)`

// business inserts an order. Every measured transaction executes this insert.
func business(ctx context.Context, tx *sql.Tx) error {
	_, err := tx.ExecContext(ctx, insertOrder, "a customer's name", 4200)
	return err
}

func transaction(ctx context.Context, p pools) error {
	return inTx(ctx, p.db, func(tx *sql.Tx) error { return business(ctx, tx) })
}

func transactionWithOutbox(ctx context.Context, p pools) error {
	return outbox.InTx(ctx, p.db, func(tx *sql.Tx, events message.Publisher) error {
		if err := business(ctx, tx); err != nil {
			return err
		}
		return events.Publish(stockTopic, newMessage())
	})
}

func transactionWithStock(ctx context.Context, p pools) error {
	return inTx(ctx, p.db, func(tx *sql.Tx) error {
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

// transactionWithNothing has an additional round trip that does no work. It shows how
// much of the cost of an event is the cost of a round trip.
func transactionWithNothing(ctx context.Context, p pools) error {
	return inTx(ctx, p.db, func(tx *sql.Tx) error {
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

func businessOfPgx(ctx context.Context, tx pgx.Tx) error {
	_, err := tx.Exec(ctx, insertOrder, "a customer's name", 4200)
	return err
}

func transactionOfPgx(ctx context.Context, p pools) error {
	return pgx.BeginFunc(ctx, p.pgx, func(tx pgx.Tx) error { return businessOfPgx(ctx, tx) })
}

func transactionWithPgxOutbox(ctx context.Context, p pools) error {
	return pgxoutbox.InTx(ctx, p.pgx, func(tx pgx.Tx, events message.Publisher) error {
		if err := businessOfPgx(ctx, tx); err != nil {
			return err
		}
		return events.Publish(stockTopic, newMessage())
	})
}
