package service

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"fmt"

	"github.com/watermill-once/once/schema"
)

// Database is the service's database, made by [Postgres] or [SQLite]. It opens
// several pools of connections, because kinds of work that share one pool can
// starve each other: handlers that use every connection would keep the forwarder
// from renewing its lease.
type Database struct {
	// Tables says which kind of database this is, and which schema has the
	// library's tables and the service's.
	Tables schema.Config

	connector  driver.Connector
	statements string // that create the service's tables
	mostOpen   int    // connections of one pool; 0 for no limit

	// lock makes a transaction wait for others that create tables.
	lock string

	// limitWait makes a transaction give up waiting for a lock, and lockTimeout
	// reports whether it has. Both are nil where the database has one timeout for
	// all connections.
	limitWait   func(milliseconds int64) string
	lockTimeout func(err error) bool
}

// Pool opens a pool of at most size connections. A connection is made when it is
// needed first.
func (d Database) Pool(size int) *sql.DB {
	if d.mostOpen > 0 {
		size = min(size, d.mostOpen)
	}
	pool := sql.OpenDB(d.connector)
	pool.SetMaxOpenConns(size)
	pool.SetMaxIdleConns(size)
	return pool
}

// Migrate creates the library's tables and the service's, as far as they are
// missing. Several instances may call it at the same time: one of them works,
// and the others wait.
func (d Database) Migrate(ctx context.Context) error {
	pool := d.Pool(1)
	defer pool.Close()
	if err := schema.Up(ctx, pool, d.Tables); err != nil {
		return err
	}
	return d.Apply(ctx, d.statements)
}

// Apply runs statements in one transaction. They must be repeatable, such as
// CREATE TABLE IF NOT EXISTS. Several instances may call Apply at the same time.
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
