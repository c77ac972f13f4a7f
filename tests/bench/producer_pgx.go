package main

import (
	"context"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/watermill-once/once/outbox/pgxoutbox"
)

// openPgx returns a pool of pgx as large as the others.
func openPgx(ctx context.Context, dsn string) (*pgxpool.Pool, error) {
	config, err := pgxpool.ParseConfig(dsn)
	if err != nil {
		return nil, err
	}
	config.MaxConns = connections
	return pgxpool.NewWithConfig(ctx, config)
}

// businessOfPgx is the same write as business.
func businessOfPgx(ctx context.Context, tx pgx.Tx) error {
	_, err := tx.Exec(ctx, `INSERT INTO orders (customer, total) VALUES ($1, $2)`, "a customer's name", 4200)
	return err
}

func transactionOfPgx(ctx context.Context, db *database) error {
	return pgx.BeginFunc(ctx, db.pgx, func(tx pgx.Tx) error { return businessOfPgx(ctx, tx) })
}

func transactionWithPgxOutbox(ctx context.Context, db *database) error {
	return pgxoutbox.InTx(ctx, db.pgx, func(tx pgx.Tx, events message.Publisher) error {
		if err := businessOfPgx(ctx, tx); err != nil {
			return err
		}
		return events.Publish(stockTopic, newMessage())
	})
}
