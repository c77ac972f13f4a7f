package lazytx

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"time"
)

// Connector returns a connector for [database/sql.OpenDB] that connects as c
// does, which is lib/pq's, or one around it that leaves its connections as they
// are. Connections of other drivers are refused when they are made.
func Connector(c driver.Connector) driver.Connector { return connector{c} }

type connector struct{ driver.Connector }

// postgres is what a connection of lib/pq can do. It is a transaction too: the
// one that is open on it, however it was begun.
type postgres interface {
	driver.Conn
	driver.ConnBeginTx
	driver.ConnPrepareContext
	driver.ExecerContext
	driver.NamedValueChecker
	driver.Pinger
	driver.QueryerContext
	driver.SessionResetter
	driver.Tx
	driver.Validator
}

// Connect implements driver.Connector.
func (c connector) Connect(ctx context.Context) (driver.Conn, error) {
	inner, err := c.Connector.Connect(ctx)
	if err != nil {
		return nil, err
	}
	pq, ok := inner.(postgres)
	if !ok {
		err := fmt.Errorf("lazytx: the connector given connects with a %T, which is no connection of lib/pq", inner)
		return nil, errors.Join(err, inner.Close())
	}
	return &conn{postgres: pq, alive: time.Now()}, nil
}

// Close is called by that of the sql.DB.
func (c connector) Close() error {
	if closer, ok := c.Connector.(io.Closer); ok {
		return closer.Close()
	}
	return nil
}
