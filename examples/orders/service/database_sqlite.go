package service

import (
	_ "embed"
	"fmt"
	"net/url"

	"modernc.org/sqlite"

	"github.com/watermill-once/once/schema"
)

//go:embed tables_orders_sqlite.sql
var sqliteOrders string

//go:embed tables_payments_sqlite.sql
var sqlitePayments string

// SQLite returns the database in the file at path. Transactions take the write lock
// when they begin, and wait for it for up to ten seconds.
func SQLite(path string) (Database, error) {
	dsn := url.URL{Scheme: "file", OmitHost: true, Path: path, RawQuery: "_txlock=immediate&_time_format=sqlite" +
		"&_pragma=busy_timeout(10000)&_pragma=journal_mode(WAL)&_pragma=synchronous(NORMAL)"}
	connector, err := sqlite.NewConnector(dsn.String())
	if err != nil {
		return Database{}, fmt.Errorf("service: open %s: %w", path, err)
	}
	return Database{
		Tables:     schema.Config{Dialect: schema.SQLite},
		connector:  connector,
		statements: map[string]string{Orders: sqliteOrders, Payments: sqlitePayments},
		// SQLite has one writer at a time. With one connection, a goroutine waits for the
		// connection, and the pool wakes it. If it waited for SQLite's lock, it would sleep
		// and poll.
		mostOpen: 1,
	}, nil
}
