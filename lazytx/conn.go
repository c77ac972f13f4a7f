package lazytx

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"time"

	"github.com/watermill-once/once/internal/dialect"
)

// maxIdle is the longest time since the last answer after which BEGIN is still delayed.
// After a longer time the connection may be dead, so BEGIN is sent immediately. If it
// fails, the caller can take another connection.
const maxIdle = time.Second

// conn wraps a connection of lib/pq.
type conn struct {
	postgres

	begin string    // BEGIN statement that was not sent yet, or ""
	alive time.Time // when the server last answered

	// watches says that lib/pq watched the context of the latest transaction that it
	// began itself. From then on, every commit and rollback on the connection ends the
	// watch, until lib/pq begins another transaction itself. Ending a watch twice
	// breaks the connection, or panics. So the transaction after such a one must not
	// delay its BEGIN.
	watches bool

	mayHaveEnded bool // one of the transaction's statements may have ended it
	preparedEnd  bool // a statement that was prepared on this connection may end a transaction
}

// BeginTx delays BEGIN until the first statement, if that is known to be a text without
// arguments. Then BEGIN can be sent in the same text. It also means that no statement
// prepared earlier can run before BEGIN.
func (c *conn) BeginTx(ctx context.Context, options driver.TxOptions) (driver.Tx, error) {
	c.mayHaveEnded = false
	begun, err := c.beginTx(ctx, options)
	if check := dialect.CheckOf(ctx); check != nil && err == nil && ctx.Done() == nil {
		begun.check, check.Sent = check.SQL, true
	}
	return begun, err
}

func (c *conn) beginTx(ctx context.Context, options driver.TxOptions) (tx, error) {
	begin, ok := beginText(options)
	if !ok || !dialect.StartsWithText(ctx) || ctx.Done() != nil || c.watches || time.Since(c.alive) > maxIdle {
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

// beginText returns the same statement as lib/pq sends, and false if BEGIN cannot be
// delayed. READ WRITE makes a replica refuse the BEGIN.
func beginText(options driver.TxOptions) (text string, ok bool) {
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
	c.mayHaveEnded = c.mayHaveEnded || endsTransaction(query)
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
	c.mayHaveEnded = c.mayHaveEnded || endsTransaction(query)
	if err := c.beginNow(ctx); err != nil {
		return nil, err
	}
	return c.postgres.QueryContext(ctx, query, args)
}

// PrepareContext implements driver.ConnPrepareContext.
func (c *conn) PrepareContext(ctx context.Context, query string) (driver.Stmt, error) {
	c.preparedEnd = c.preparedEnd || endsTransaction(query)
	if err := c.beginNow(ctx); err != nil {
		return nil, err
	}
	return c.postgres.PrepareContext(ctx, query)
}

// beginNow sends a delayed BEGIN by itself.
func (c *conn) beginNow(ctx context.Context) error {
	if c.begin == "" {
		return nil
	}
	_, err := c.postgres.ExecContext(ctx, c.begin, nil)
	return c.begun(err)
}

// begun handles the result of a BEGIN, and returns the error for the caller. After an
// error the next BEGIN is not delayed, because the server may have become a replica.
func (c *conn) begun(err error) error {
	c.begin = ""
	if err != nil {
		c.alive = time.Time{}
	}
	return dialect.BeginError(err)
}

// tx is the transaction that is open on a connection.
type tx struct {
	driver.Tx

	conn  *conn
	check string // statement that fails if the transaction was ended by a statement; may be ""
}

// Commit implements driver.Tx.
func (t tx) Commit() error {
	if t.conn.dropBegin() {
		return nil
	}
	err := t.commit()
	if err == nil {
		t.conn.alive = time.Now()
	}
	return err
}

func (t tx) commit() error {
	if t.check == "" || !t.conn.mayHaveEnded && !t.conn.preparedEnd {
		return t.Tx.Commit()
	}
	_, err := t.conn.postgres.ExecContext(context.Background(), t.check+"; COMMIT", nil)
	if err != nil {
		// If the check has failed, the transaction is still open, and must be rolled
		// back. Otherwise lib/pq notices that no transaction is open, and the pool
		// drops the connection.
		_ = t.Tx.Rollback()
	}
	return err
}

// Rollback implements driver.Tx.
func (t tx) Rollback() error {
	if t.conn.dropBegin() {
		return nil
	}
	return t.Tx.Rollback()
}

// dropBegin forgets a BEGIN that was not sent. It reports whether there was one.
func (c *conn) dropBegin() bool {
	delayed := c.begin != ""
	c.begin = ""
	return delayed
}
