package lazytx

import (
	"context"
	"database/sql/driver"
	"errors"
	"io"
	"time"
)

// Connector returns a connector for [database/sql.OpenDB]. It connects through c, which
// must be a connector of lib/pq or of pgx, or a wrapper that returns their connections
// unchanged. With another driver, Connect fails.
func Connector(c driver.Connector) driver.Connector { return connector{c} }

type connector struct{ driver.Connector }

// Connect implements driver.Connector.
func (c connector) Connect(ctx context.Context) (driver.Conn, error) {
	inner, err := c.Connector.Connect(ctx)
	if err != nil {
		return nil, err
	}
	wrapped, err := newConn(inner)
	if err != nil {
		return nil, errors.Join(err, inner.Close())
	}
	wrapped.alive = time.Now()
	return wrapped, nil
}

// Close implements io.Closer. sql.DB.Close calls it.
func (c connector) Close() error {
	if closer, ok := c.Connector.(io.Closer); ok {
		return closer.Close()
	}
	return nil
}
