package oncetest

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"fmt"
)

// wrap returns a pool with wrapped connections of db, which inject the faults of
// their deliveries. It keeps no idle connections: if db has a single connection, the
// comparison of the tables needs it too.
func wrap(db *sql.DB) *sql.DB { return wrapFor(db, nil) }

// wrapFor is wrap for the connections of a call.
func wrapFor(db *sql.DB, call *call) *sql.DB {
	wrapped := sql.OpenDB(connector{db, call})
	wrapped.SetMaxIdleConns(-1)
	return wrapped
}

// connector takes its connections from a pool, so that it needs neither the address
// of the database nor the name of the driver.
type connector struct {
	db   *sql.DB
	call *call // or nil
}

func (c connector) Driver() driver.Driver { return c.db.Driver() }

func (c connector) Connect(ctx context.Context) (driver.Conn, error) {
	pooled, err := c.db.Conn(ctx)
	if err != nil {
		return nil, err
	}
	wrapped := &conn{pooled: pooled, call: c.call}
	// A driver connection from Raw must not be used later, because the pool may have
	// lent it to others. Here it is safe: pooled stays reserved until wrapped is
	// closed.
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
