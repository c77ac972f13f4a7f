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

// conn wraps a connection of lib/pq or of pgx.
type conn struct {
	postgres

	valid   func() bool
	text    driver.Tx // ends a transaction that began with a text
	watched bool      // the driver watches the contexts of transactions, as lib/pq does

	begin string    // BEGIN statement that was not sent yet, or ""
	alive time.Time // when the server last answered

	// watches says that lib/pq watched the context of the latest transaction that it
	// began itself. From then on, every commit and rollback on the connection ends the
	// watch, until lib/pq begins another transaction itself. Ending a watch twice
	// breaks the connection, or panics. So the transaction after such a one must not
	// delay its BEGIN, and lib/pq must end such a transaction itself.
	watches bool

	late     late
	mayDelay bool // statements of the transaction may wait for COMMIT

	mayHaveEnded bool // one of the transaction's statements may have ended it
	preparedEnd  bool // a statement that was prepared on this connection may end a transaction
	preparedLook bool // a statement that was prepared on this connection is not harmless
}

// BeginTx delays BEGIN until the first statement, if that is known to be a text without
// arguments. Then BEGIN can be sent in the same text. It also means that no statement
// prepared earlier can run before BEGIN.
func (c *conn) BeginTx(ctx context.Context, options driver.TxOptions) (driver.Tx, error) {
	c.mayHaveEnded = false
	c.late.end()
	begun, err := c.beginTx(ctx, options)
	c.mayDelay = err == nil && !options.ReadOnly && !c.watches
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
		c.watches = c.watched && ctx.Done() != nil
		return tx{Tx: inner, conn: c}, nil
	}
	c.begin = begin
	return tx{Tx: c.text, conn: c}, nil
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
	if sent, err := c.sendLate(ctx, query); sent || err != nil {
		return driver.ResultNoRows, err
	}
	if err := c.before(ctx, query); err != nil {
		return nil, err
	}
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
	if err := c.before(ctx, query); err != nil {
		return nil, err
	}
	if err := c.beginNow(ctx); err != nil {
		return nil, err
	}
	return c.postgres.QueryContext(ctx, query, args)
}

// PrepareContext implements driver.ConnPrepareContext. A prepared statement is executed
// without this connection, so a statement that is not harmless ends all delays of the
// connection.
func (c *conn) PrepareContext(ctx context.Context, query string) (driver.Stmt, error) {
	scope := scopeOf(query)
	c.preparedEnd = c.preparedEnd || scope.ends
	if !scope.harmless() {
		c.preparedLook = true
		if err := c.sendNow(ctx); err != nil {
			return nil, err
		}
	}
	if err := c.beginNow(ctx); err != nil {
		return nil, err
	}
	return c.postgres.PrepareContext(ctx, query)
}

// IsValid implements driver.Validator.
func (c *conn) IsValid() bool { return c.valid() }

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
