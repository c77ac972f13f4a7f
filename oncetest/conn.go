package oncetest

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"

	"github.com/watermill-once/once/internal/dialect"
)

var errLost = fmt.Errorf("oncetest: the connection is lost here: %w", driver.ErrBadConn)

// conn wraps a connection of the driver, and can inject a fault. For an optional interface that the
// driver does not implement, it does what database/sql does.
type conn struct {
	pooled *sql.Conn
	inner  driver.Conn

	tx       driver.Tx // open transaction, or nil
	delivery *delivery // delivery of the latest transaction, or nil
	call     *call     // call that uses this connection, or nil
	check    *dialect.Check
	gone     bool
}

var (
	_ driver.ConnBeginTx        = (*conn)(nil)
	_ driver.ConnPrepareContext = (*conn)(nil)
	_ driver.ExecerContext      = (*conn)(nil)
	_ driver.QueryerContext     = (*conn)(nil)
	_ driver.Pinger             = (*conn)(nil)
	_ driver.SessionResetter    = (*conn)(nil)
	_ driver.Validator          = (*conn)(nil)
	_ driver.NamedValueChecker  = (*conn)(nil)
)

// lose rolls back the transaction, and makes every later use of the connection fail. The driver's
// connection is closed with conn, because some drivers fail if it is closed while statements or
// rows are open.
func (c *conn) lose() error {
	if c.tx != nil {
		_ = c.tx.Rollback() // if it fails, the database rolls back when the connection is closed
		c.tx = nil
	}
	c.gone = true
	return errLost
}

// statement is called before each statement, and returns the error of a fault to inject.
func (c *conn) statement(ctx context.Context, query string) error {
	if c.gone {
		return errLost
	}
	if !c.checks(query) {
		c.call.statement(query)
	}
	if !c.counts(query) {
		return nil
	}
	switch c.delivery.statement(query) {
	case lost:
		return c.lose()
	case statementFails:
		return c.failStatement(ctx)
	default:
		return nil
	}
}

// counts reports whether a statement counts. Those that only check the transaction change no data,
// and are not executed in every one.
func (c *conn) counts(query string) bool {
	return c.tx != nil && c.delivery != nil && !c.checks(query)
}

func (c *conn) checks(query string) bool {
	return c.check != nil && (query == c.check.SQL || query == c.check.Mark || query == dialect.Probe)
}

// After an invalid statement, the transaction is as after a real error: PostgreSQL accepts no more
// statements, SQLite does.
func (c *conn) failStatement(ctx context.Context) error {
	const broken = "oncetest_makes_this_statement_fail"
	err := driver.ErrSkip
	if execer, ok := c.inner.(driver.ExecerContext); ok {
		_, err = execer.ExecContext(ctx, broken, nil)
	}
	if errors.Is(err, driver.ErrSkip) {
		var inner driver.Stmt
		if inner, err = c.prepare(ctx, broken); err == nil {
			_, err = inner.Exec(nil) //nolint:staticcheck // every driver has Exec, and the statement needs no context
			_ = inner.Close()
		}
	}
	if err == nil {
		return errors.New("oncetest: this statement is made to fail")
	}
	return err
}

func (c *conn) ExecContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Result, error) {
	execer, ok := c.inner.(driver.ExecerContext)
	if !ok {
		return nil, driver.ErrSkip
	}
	if err := c.statement(ctx, query); err != nil {
		return nil, err
	}
	result, err := execer.ExecContext(ctx, query, args)
	c.skipped(query, err)
	return result, err
}

func (c *conn) QueryContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Rows, error) {
	queryer, ok := c.inner.(driver.QueryerContext)
	if !ok {
		return nil, driver.ErrSkip
	}
	if err := c.statement(ctx, query); err != nil {
		return nil, err
	}
	rows, err := queryer.QueryContext(ctx, query, args)
	c.skipped(query, err)
	return rows, err
}

// After driver.ErrSkip, database/sql executes the statement again: it must not count twice.
func (c *conn) skipped(query string, err error) {
	if errors.Is(err, driver.ErrSkip) && !c.checks(query) {
		c.call.undo()
	}
	if c.counts(query) && errors.Is(err, driver.ErrSkip) {
		c.delivery.undo()
	}
}

func (c *conn) Prepare(query string) (driver.Stmt, error) {
	return c.PrepareContext(context.Background(), query)
}

func (c *conn) PrepareContext(ctx context.Context, query string) (driver.Stmt, error) {
	if c.gone {
		return nil, errLost
	}
	inner, err := c.prepare(ctx, query)
	if err != nil {
		return nil, err
	}
	return newStmt(c, inner, query), nil
}

func (c *conn) prepare(ctx context.Context, query string) (driver.Stmt, error) {
	if preparer, ok := c.inner.(driver.ConnPrepareContext); ok {
		return preparer.PrepareContext(ctx, query)
	}
	return c.inner.Prepare(query)
}

func (c *conn) Begin() (driver.Tx, error) {
	return c.BeginTx(context.Background(), driver.TxOptions{})
}

func (c *conn) BeginTx(ctx context.Context, options driver.TxOptions) (driver.Tx, error) {
	if c.gone {
		return nil, errLost
	}
	inner, err := c.begin(ctx, options)
	if err != nil {
		return nil, err
	}
	c.tx, c.delivery, c.check = inner, deliveryOf(ctx), dialect.CheckOf(ctx)
	if c.delivery != nil {
		c.delivery.begin()
	}
	return tx{c}, nil
}

func (c *conn) begin(ctx context.Context, options driver.TxOptions) (driver.Tx, error) {
	if beginner, ok := c.inner.(driver.ConnBeginTx); ok {
		return beginner.BeginTx(ctx, options)
	}
	if options != (driver.TxOptions{}) {
		return nil, errors.New("oncetest: the driver has no options for transactions")
	}
	return c.inner.Begin() //nolint:staticcheck // for drivers without driver.ConnBeginTx
}

func (c *conn) Ping(ctx context.Context) error {
	if c.gone {
		return errLost
	}
	if pinger, ok := c.inner.(driver.Pinger); ok {
		return pinger.Ping(ctx)
	}
	return nil
}

func (c *conn) ResetSession(ctx context.Context) error {
	if c.gone {
		return driver.ErrBadConn
	}
	if resetter, ok := c.inner.(driver.SessionResetter); ok {
		return resetter.ResetSession(ctx)
	}
	return nil
}

func (c *conn) IsValid() bool {
	validator, ok := c.inner.(driver.Validator)
	return !c.gone && (!ok || validator.IsValid())
}

func (c *conn) CheckNamedValue(value *driver.NamedValue) error {
	if checker, ok := c.inner.(driver.NamedValueChecker); ok {
		return checker.CheckNamedValue(value)
	}
	return driver.ErrSkip
}

// Close returns the driver's connection to its pool, which closes it if it is lost.
func (c *conn) Close() error {
	if c.gone {
		_ = c.pooled.Raw(func(any) error { return driver.ErrBadConn })
	}
	if err := c.pooled.Close(); !errors.Is(err, sql.ErrConnDone) {
		return err
	}
	return nil
}
