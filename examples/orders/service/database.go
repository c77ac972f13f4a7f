package service

import (
	"context"
	"database/sql"
	"database/sql/driver"
	_ "embed"
	"errors"
	"fmt"
	"net/url"

	"github.com/lib/pq"
	"modernc.org/sqlite"

	"github.com/watermill-once/once/lazytx"
	"github.com/watermill-once/once/schema"
)

// Database is where the service keeps everything. It opens pools of
// connections, because work that shares one can starve: handlers that hold
// every connection would keep the forwarder from renewing its lease.
type Database struct {
	// Tables says in which kind of database, and in which schema of it, the
	// tables are: the library's and ours.
	Tables schema.Config

	connector driver.Connector
}

// SQLite returns the database in a file. Transactions take the write lock when
// they begin, and wait for it: with SQLite there is one writer at a time.
func SQLite(path string) (Database, error) {
	dsn := url.URL{Scheme: "file", OmitHost: true, Path: path, RawQuery: "_txlock=immediate&_time_format=sqlite" +
		"&_pragma=busy_timeout(10000)&_pragma=journal_mode(WAL)&_pragma=synchronous(NORMAL)"}
	connector, err := sqlite.NewConnector(dsn.String())
	if err != nil {
		return Database{}, fmt.Errorf("service: open %s: %w", path, err)
	}
	return Database{Tables: schema.Config{Dialect: schema.SQLite}, connector: connector}, nil
}

// Postgres returns the database that dsn, a URL or key=value pairs, leads to.
// All tables are in the schema of that name, which need not exist.
func Postgres(dsn, schemaName string) (Database, error) {
	tables := schema.Config{Dialect: schema.PostgreSQL, Schema: schemaName}
	if err := tables.Validate(); err != nil {
		return Database{}, err
	}
	config, err := pq.NewConfig(dsn)
	if err != nil {
		// What the parser says can quote the password.
		return Database{}, errors.New("service: the DSN of PostgreSQL cannot be read: it must be a URL or key=value pairs")
	}
	if config.Runtime == nil {
		config.Runtime = map[string]string{}
	}
	config.Runtime["search_path"] = `"` + schemaName + `"` // validated: no quotes in it
	connector, err := pq.NewConnectorConfig(config)
	if err != nil {
		return Database{}, fmt.Errorf("service: %w", err)
	}
	return Database{Tables: tables, connector: lazytx.Connector(connector)}, nil
}

// Pool opens a pool of at most so many connections. None is made before it is
// needed. With SQLite it is one: there is one writer at a time anyway, and who
// waits for a connection is woken, while who waits for SQLite's lock sleeps.
func (d Database) Pool(most int) *sql.DB {
	if d.Tables.Dialect == schema.SQLite {
		most = 1
	}
	pool := sql.OpenDB(d.connector)
	pool.SetMaxOpenConns(most)
	pool.SetMaxIdleConns(most)
	return pool
}

//go:embed tables_postgres.sql
var postgresTables string

//go:embed tables_sqlite.sql
var sqliteTables string

// Migrate creates what tables are missing, the library's and ours. Any number
// of instances may call it at once: one works, the others wait for it.
func (d Database) Migrate(ctx context.Context) error {
	pool := d.Pool(1)
	defer pool.Close()
	if err := schema.Up(ctx, pool, d.Tables); err != nil {
		return err
	}
	if d.Tables.Dialect == schema.SQLite {
		return d.Apply(ctx, sqliteTables)
	}
	return d.Apply(ctx, postgresTables)
}

// Apply runs statements that can be run again, such as CREATE TABLE IF NOT
// EXISTS, in one transaction. The lock is what lets many call it at once: they
// would collide in PostgreSQL's catalogue in spite of IF NOT EXISTS.
func (d Database) Apply(ctx context.Context, statements string) error {
	pool := d.Pool(1)
	defer pool.Close()
	tx, err := pool.BeginTx(ctx, nil)
	if err != nil {
		return fmt.Errorf("service: create tables: %w", err)
	}
	defer func() { _ = tx.Rollback() }() // after a commit it does nothing
	if d.Tables.Dialect == schema.PostgreSQL {
		if _, err := tx.ExecContext(ctx, `SELECT pg_advisory_xact_lock(hashtext('orders service: tables'))`); err != nil {
			return fmt.Errorf("service: create tables: %w", err)
		}
	}
	if _, err := tx.ExecContext(ctx, statements); err != nil {
		return fmt.Errorf("service: create tables: %w", err)
	}
	if err := tx.Commit(); err != nil {
		return fmt.Errorf("service: create tables: %w", err)
	}
	return nil
}
