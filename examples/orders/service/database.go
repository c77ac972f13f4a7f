package service

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"fmt"

	"github.com/watermill-once/once/schema"
)

// Database is the database of the service, as returned by [Postgres] or [SQLite]. It
// opens several connection pools, because one kind of work could use all connections of
// a shared pool. For example, handlers that use every connection would prevent the
// forwarder from renewing its lease.
type Database struct {
	// Tables says which kind of database this is, and which schema contains the tables
	// of the library and of the service.
	Tables schema.Config

	connector  driver.Connector
	statements map[string]string // create the tables of each service
	mostOpen   int               // maximum number of connections of a pool; 0 means no limit

	// lock is a statement that makes a transaction wait for other transactions that create
	// tables.
	lock string
}

// Pool opens a pool of at most size connections. A connection is opened when it is
// needed for the first time.
func (d Database) Pool(size int) *sql.DB {
	if d.mostOpen > 0 {
		size = min(size, d.mostOpen)
	}
	pool := sql.OpenDB(d.connector)
	pool.SetMaxOpenConns(size)
	pool.SetMaxIdleConns(size)
	return pool
}

// Migrate creates the missing tables of the library and of the given services. If
// services is empty, it creates the tables of both services. Several instances may call
// it at the same time: one creates the tables, and the others wait.
func (d Database) Migrate(ctx context.Context, services ...string) error {
	if len(services) == 0 {
		services = []string{Orders, Payments}
	}
	pool := d.Pool(1)
	defer pool.Close()
	if err := schema.Up(ctx, pool, d.Tables); err != nil {
		return err
	}
	for _, name := range services {
		if err := d.Apply(ctx, d.statements[name]); err != nil {
			return err
		}
	}
	return nil
}

// Apply executes statements in one transaction. A second execution of the statements
// must do no harm, as with CREATE TABLE IF NOT EXISTS. Several instances may call Apply
// at the same time.
func (d Database) Apply(ctx context.Context, statements string) error {
	pool := d.Pool(1)
	defer pool.Close()
	tx, err := pool.BeginTx(ctx, nil)
	if err != nil {
		return fmt.Errorf("service: create tables: %w", err)
	}
	defer func() { _ = tx.Rollback() }() // does nothing after the commit
	if d.lock != "" {
		if _, err := tx.ExecContext(ctx, d.lock); err != nil {
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
