package oncetest

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"fmt"
)

// wrap returns a pool whose connections wrap connections of db. If a wrapped connection
// runs a transaction of a delivery, it injects the fault of this delivery. The pool keeps
// no idle connections: if db has only one connection, the comparison of the tables needs
// this connection, too.
func wrap(db *sql.DB) *sql.DB { return wrapFor(db, nil) }

// wrapFor works like wrap, but the connections also report their statements to the
// parameter call, unless it is nil.
func wrapFor(db *sql.DB, call *call) *sql.DB {
	wrapped := sql.OpenDB(connector{db, call})
	wrapped.SetMaxIdleConns(-1)
	return wrapped
}

// connector takes its connections from another pool. So it needs neither the address of
// the database nor the name of the driver.
type connector struct {
	db   *sql.DB
	call *call // may be nil
}

func (c connector) Driver() driver.Driver { return c.db.Driver() }

func (c connector) Connect(ctx context.Context) (driver.Conn, error) {
	pooled, err := c.db.Conn(ctx)
	if err != nil {
		return nil, err
	}
	wrapped := &conn{pooled: pooled, call: c.call}
	// In general, a driver's connection must not be used after the method Raw has returned,
	// because the pool may give the connection to another user. Here this is safe: the pool
	// cannot do so before the variable wrapped is closed.
	err = pooled.Raw(func(inner any) error {
		var ok bool
		if wrapped.inner, ok = inner.(driver.Conn); !ok {
			return fmt.Errorf("oncetest: the driver's connection is a %T", inner)
		}
		return nil
	})
	if err != nil {
		_ = pooled.Close()
		return nil, err
	}
	return wrapped, nil
}
