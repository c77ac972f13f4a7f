package lazytx

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"time"

	"github.com/watermill-once/once/internal/dialect"
)

// rested is how long a connection may have been idle to be trusted. One that
// has been for longer may have died: it is asked first, so that whoever begins can
// take another one.
const rested = time.Second

// conn is a connection of lib/pq.
type conn struct {
	postgres

	begin string    // still to be sent
	alive time.Time // when it was seen to be

	// lib/pq watches the context that a transaction was begun with, if it can end,
	// and ends its watch at every commit and rollback until another has begun: a
	// second time it breaks the connection, or panics.
	watches bool
}

// BeginTx leaves BEGIN to the first statement if that is known to be a text
// without arguments: BEGIN has room in it, and no statement that was prepared
// before can pass it by.
func (c *conn) BeginTx(ctx context.Context, options driver.TxOptions) (driver.Tx, error) {
	begun, err := c.beginTx(ctx, options)
	if check := dialect.CheckOf(ctx); check != nil && err == nil && ctx.Done() == nil {
		begun.check, check.Sent = check.SQL, true
	}
	return begun, err
}

func (c *conn) beginTx(ctx context.Context, options driver.TxOptions) (tx, error) {
	begin, can := beginText(options)
	if !can || !dialect.StartsWithText(ctx) || ctx.Done() != nil || c.watches || time.Since(c.alive) > rested {
		inner, err := c.postgres.BeginTx(ctx, options)
		if err != nil {
			return tx{}, err
		}
		c.watches = ctx.Done() != nil
		return tx{Tx: inner, conn: c}, nil
	}
	c.begin = begin
	return tx{Tx: c.postgres, conn: c}, nil
}

// beginText is what lib/pq sends. READ WRITE is refused by a replica.
func beginText(options driver.TxOptions) (text string, can bool) {
	switch {
	case options.ReadOnly:
		return "", false
	case options.Isolation == driver.IsolationLevel(sql.LevelDefault):
		return "BEGIN READ WRITE; ", true
	case options.Isolation == driver.IsolationLevel(sql.LevelReadCommitted):
		return "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE; ", true
	}
	return "", false
}

// ExecContext implements driver.ExecerContext.
func (c *conn) ExecContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Result, error) {
	if c.begin == "" {
		return c.postgres.ExecContext(ctx, query, args)
	}
	if len(args) > 0 {
		if err := c.beginNow(ctx); err != nil {
			return nil, err
		}
		return c.postgres.ExecContext(ctx, query, args)
	}
	result, err := c.postgres.ExecContext(ctx, c.begin+query, nil)
	return result, c.begun(err)
}

// QueryContext implements driver.QueryerContext.
func (c *conn) QueryContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Rows, error) {
	if err := c.beginNow(ctx); err != nil {
		return nil, err
	}
	return c.postgres.QueryContext(ctx, query, args)
}

// PrepareContext implements driver.ConnPrepareContext.
func (c *conn) PrepareContext(ctx context.Context, query string) (driver.Stmt, error) {
	if err := c.beginNow(ctx); err != nil {
		return nil, err
	}
	return c.postgres.PrepareContext(ctx, query)
}

// beginNow sends BEGIN by itself if it is still to be sent.
func (c *conn) beginNow(ctx context.Context) error {
	if c.begin == "" {
		return nil
	}
	_, err := c.postgres.ExecContext(ctx, c.begin, nil)
	return c.begun(err)
}

// begun notes what came of a BEGIN, and returns the error that is to be told.
// After one, which may be that the connection leads to a replica by now, the
// next BEGIN is sent at once.
func (c *conn) begun(err error) error {
	c.begin = ""
	if err != nil {
		c.alive = time.Time{}
	}
	return dialect.BeginError(err)
}

// tx is a transaction of a connection.
type tx struct {
	driver.Tx

	conn  *conn
	check string // goes with COMMIT, which does not take place if it fails
}

// Commit implements driver.Tx.
func (t tx) Commit() error {
	if t.conn.unbegun() {
		return nil
	}
	err := t.commit()
	if err == nil {
		t.conn.alive = time.Now()
	}
	return err
}

func (t tx) commit() error {
	if t.check == "" {
		return t.Tx.Commit()
	}
	_, err := t.conn.postgres.ExecContext(context.Background(), t.check+"; COMMIT", nil)
	if err != nil {
		// Where the check has failed the transaction is still open. Otherwise lib/pq
		// finds that there is none, and the connection is not used again.
		_ = t.Tx.Rollback()
	}
	return err
}

// Rollback implements driver.Tx.
func (t tx) Rollback() error {
	if t.conn.unbegun() {
		return nil
	}
	return t.Tx.Rollback()
}

// unbegun ends a transaction that the server has not heard of.
func (c *conn) unbegun() bool {
	unbegun := c.begin != ""
	c.begin = ""
	return unbegun
}
