package lazytx

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"time"
)

// Connector returns a connector for [database/sql.OpenDB] that connects through c. c
// must be a connector of lib/pq, or a wrapper that returns lib/pq's connections
// unchanged. With another driver, Connect fails.
func Connector(c driver.Connector) driver.Connector { return connector{c} }

type connector struct{ driver.Connector }

// postgres contains the methods of a connection of lib/pq. A connection is also a
// driver.Tx: its methods end the open transaction of the connection, no matter how that
// transaction was begun.
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
		err := fmt.Errorf("lazytx: the connector returned a %T, not a connection of lib/pq: use pq.NewConnector", inner)
		return nil, errors.Join(err, inner.Close())
	}
	return &conn{postgres: pq, alive: time.Now()}, nil
}

// Close implements io.Closer. sql.DB.Close calls it.
func (c connector) Close() error {
	if closer, ok := c.Connector.(io.Closer); ok {
		return closer.Close()
	}
	return nil
}
