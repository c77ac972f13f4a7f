package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"strings"

	"github.com/lib/pq"

	"github.com/watermill-once/once/examples/orders/service"
)

// onTwoDatabases returns the services payments and orders, each with its own database.
func (a *app) onTwoDatabases(ctx context.Context) ([]*part, error) {
	dsn := a.options.paymentsDB
	if dsn == "" {
		var err error
		if dsn, err = createBeside(ctx, a.options.db); err != nil {
			return nil, err
		}
	}
	orders, err := service.Postgres(a.options.db, a.options.schema)
	if err != nil {
		return nil, err
	}
	payments, err := service.Postgres(dsn, service.Payments)
	if err != nil {
		return nil, fmt.Errorf("-payments-db: %w", err)
	}
	return []*part{
		{names: []string{service.Payments}, database: payments, outside: payments, addr: "127.0.0.1:0"},
		{names: []string{service.Orders}, database: orders, outside: payments, addr: a.options.addr, addrGiven: a.options.addrGiven},
	}, nil
}

// createBeside creates a second database on the server of dsn, if it does not exist, and
// returns its DSN.
func createBeside(ctx context.Context, dsn string) (string, error) {
	config, err := pq.NewConfig(dsn)
	if err != nil {
		return "", errors.New("the DSN cannot be parsed") // err may contain the password
	}
	db, err := sql.Open("postgres", dsn)
	if err != nil {
		return "", err
	}
	defer db.Close()
	name := config.Database + "_payments"
	_, err = db.ExecContext(ctx, `CREATE DATABASE `+pq.QuoteIdentifier(name))
	if state := new(pq.Error); err != nil && (!errors.As(err, &state) || state.Code.Name() != "duplicate_database") {
		return "", fmt.Errorf("create the database %s for payments: %w (or name one with -payments-db)", name, err)
	}
	return withDatabase(dsn, name), nil
}

// withDatabase returns dsn with another database. dsn is a URL, or a list
// of key=value pairs.
func withDatabase(dsn, name string) string {
	if address, err := url.Parse(dsn); err == nil && strings.HasPrefix(address.Scheme, "postgres") {
		address.Path = name
		return address.String()
	}
	return dsn + " dbname='" + strings.ReplaceAll(name, "'", `\'`) + "'" // the last value counts
}
