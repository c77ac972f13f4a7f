package lazytx

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"time"

	"github.com/watermill-once/once/internal/dialect"
)

// BEGIN is delayed only if the last answer of the server is not older than maxIdle. Otherwise the
// connection may be dead, and a failed BEGIN lets the caller take another one.
const maxIdle = time.Second

// conn wraps a connection of lib/pq or of pgx.
type conn struct {
	postgres

	valid   func() bool
	text    driver.Tx // ends transactions whose BEGIN was sent in a query string
	watched bool      // whether the driver watches the contexts of transactions, as lib/pq does

	begin string    // BEGIN statement that is delayed, or ""
	alive time.Time // when the server last answered

	// watches means that lib/pq has begun the latest transaction with a context that can end, which
	// it watches. Every commit or rollback ends this watch, until lib/pq begins another
	// transaction, and if it is ended twice, the connection breaks, or lib/pq panics. So lib/pq
	// must end the transaction itself, and the next BEGIN must not be delayed.
	watches bool

	late     late
	mayDelay bool // statements of the transaction may wait for COMMIT

	check        *dialect.Check // check of the transaction that the connection sends with COMMIT, or nil
	marked       bool           // the mark of this check was sent
	mayHaveEnded bool           // a statement of the transaction may have ended it
	preparedEnd  bool           // a prepared statement of this connection may end a transaction
	preparedLook bool           // a prepared statement of this connection may notice or affect delayed statements
}

// BeginTx delays BEGIN if it knows that the first statement will be a query string without
// arguments: both can be sent in one string, and no statement that was prepared earlier can run
// before BEGIN.
func (c *conn) BeginTx(ctx context.Context, options driver.TxOptions) (driver.Tx, error) {
	c.mayHaveEnded, c.check, c.marked = false, nil, false
	c.late.end()
	begun, err := c.beginTx(ctx, options)
	c.mayDelay = err == nil && !options.ReadOnly && !c.watches
	if check := dialect.CheckOf(ctx); check != nil && err == nil && ctx.Done() == nil {
		c.check, check.Sent = check, true
		if c.begin == "" {
			err = c.mark(ctx, scope{}) // a statement that was prepared earlier may end the transaction
		}
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

// beginText returns the BEGIN of lib/pq, or false if it cannot be delayed. With READ WRITE, a
// replica refuses it, and not only the first write.
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
		return dialect.LateResult{}, err
	}
	if err := c.beforeStatement(ctx, query); err != nil {
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
	if err := c.beforeStatement(ctx, query); err != nil {
		return nil, err
	}
	if err := c.beginNow(ctx); err != nil {
		return nil, err
	}
	return c.postgres.QueryContext(ctx, query, args)
}

// PrepareContext implements driver.ConnPrepareContext. database/sql executes a prepared statement
// without this conn, so if it could notice or affect delayed statements, they are sent now, and the
// connection delays none from then on.
func (c *conn) PrepareContext(ctx context.Context, query string) (driver.Stmt, error) {
	scope := scopeOf(query)
	if err := c.mark(ctx, scope); err != nil {
		return nil, err
	}
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

// Idle reports whether no transaction is open, see [dialect.Ended].
func (c *conn) Idle() bool { return c.begin == "" && dialect.Idle(c.postgres) }

// HangUp closes the connection of pgx, see [dialect.HangUp].
func (c *conn) HangUp() { dialect.HangUp(c.postgres) }

// IsValid implements driver.Validator.
func (c *conn) IsValid() bool { return c.valid() }

func (c *conn) beginNow(ctx context.Context) error {
	if c.begin == "" {
		return nil
	}
	_, err := c.postgres.ExecContext(ctx, c.begin, nil)
	return c.begun(err)
}

// After a failed BEGIN, the next is not delayed: the server may have become a replica.
func (c *conn) begun(err error) error {
	c.begin = ""
	if err != nil {
		c.alive = time.Time{}
	}
	return dialect.BeginError(err)
}

type tx struct {
	driver.Tx

	conn *conn
}

// Commit implements driver.Tx.
func (t tx) Commit() error {
	defer t.conn.ended()
	if t.conn.begin != "" && len(t.conn.late.queries) == 0 {
		return nil
	}
	err := t.commit()
	if err == nil {
		t.conn.alive = time.Now()
	}
	return err
}

func (t tx) commit() error {
	c := t.conn
	before := c.begin + c.checkText()
	after := "COMMIT"
	if len(c.late.queries) > 0 {
		after = separator + after
	} else if before == "" {
		return t.Tx.Commit()
	}
	_, err := c.postgres.ExecContext(context.Background(), c.late.text(before, after), nil)
	if err != nil {
		// If a statement before COMMIT has failed, the transaction is still open. If COMMIT has
		// failed, lib/pq notices in Rollback that none is open, and the pool drops the connection.
		_ = t.Tx.Rollback()
		return c.late.failed(err)
	}
	return nil
}

// Rollback implements driver.Tx.
func (t tx) Rollback() error {
	defer t.conn.ended()
	if t.conn.begin != "" {
		return nil
	}
	return t.Tx.Rollback()
}

func (c *conn) ended() {
	c.begin = ""
	c.mayDelay = false
	c.late.end()
}
