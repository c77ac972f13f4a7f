package oncetest

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"fmt"
)

// wrap returns a pool whose connections are db's, each with a fault where its
// delivery wants one. It keeps none of them: a pool of a single connection must
// be free for whoever looks at the tables.
func wrap(db *sql.DB) *sql.DB { return wrapFor(db, nil) }

// wrapFor is wrap for the connections of a call.
func wrapFor(db *sql.DB, call *call) *sql.DB {
	wrapped := sql.OpenDB(connector{db, call})
	wrapped.SetMaxIdleConns(-1)
	return wrapped
}

// connector takes its connections from a pool: a *sql.DB does not tell how it
// makes them, and with its own it needs no address and no driver's name.
type connector struct {
	db   *sql.DB
	call *call // or nil
}

func (c connector) Driver() driver.Driver { return c.db.Driver() }

func (c connector) Connect(ctx context.Context) (driver.Conn, error) {
	held, err := c.db.Conn(ctx)
	if err != nil {
		return nil, err
	}
	wrapped := &conn{held: held, call: c.call}
	// What Raw shows must not be kept, because the pool could give it to
	// others. It cannot while it is held, which it is until wrapped is closed.
	err = held.Raw(func(inner any) error {
		var ok bool
		if wrapped.inner, ok = inner.(driver.Conn); !ok {
			return fmt.Errorf("oncetest: the driver's connection is a %T", inner)
		}
		return nil
	})
	if err != nil {
		_ = held.Close()
		return nil, err
	}
	return wrapped, nil
}
