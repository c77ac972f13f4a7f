package lazytx

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"reflect"
	"time"
)

// postgres has the methods that connections of lib/pq and pgx share. Both send a statement without
// arguments with the simple query protocol, so the string may contain several.
type postgres interface {
	driver.Conn
	driver.ConnBeginTx
	driver.ConnPrepareContext
	driver.ExecerContext
	driver.NamedValueChecker
	driver.Pinger
	driver.QueryerContext
	driver.SessionResetter
}

// libpq has further methods of lib/pq. Its connection is also a driver.Tx, whose Commit and
// Rollback end the open transaction, however it was begun.
type libpq interface {
	postgres
	driver.Tx
	driver.Validator
}

// pgx is the import path of pgx's connections for database/sql.
const pgx = "github.com/jackc/pgx/v5/stdlib"

func newConn(inner driver.Conn) (*conn, error) {
	if pq, ok := inner.(libpq); ok {
		return &conn{postgres: pq, valid: pq.IsValid, text: pq, watched: true}, nil
	}
	if c, ok := inner.(postgres); ok {
		if kind := reflect.TypeOf(inner); kind.Kind() == reflect.Pointer && kind.Elem().PkgPath() == pgx {
			return &conn{postgres: c, valid: func() bool { return true }, text: textTx{c}}, nil
		}
	}
	return nil, fmt.Errorf("lazytx: the connector returned a %T, not a connection of lib/pq or of pgx: "+
		"use pq.NewConnector, stdlib.GetConnector or stdlib.GetPoolConnector", inner)
}

// textTx ends a transaction of pgx whose BEGIN was sent in a query string.
type textTx struct{ postgres }

// Commit implements driver.Tx. When a transaction has failed, PostgreSQL answers COMMIT with a
// rollback but no error, and only pgx itself notices this. Commit therefore first executes a SELECT
// without columns. In a failed transaction, this SELECT fails, and COMMIT is not executed.
func (t textTx) Commit() error {
	_, err := t.ExecContext(context.Background(), "SELECT; COMMIT", nil)
	if err != nil {
		_ = t.Rollback()
	}
	return err
}

// Rollback implements driver.Tx.
func (t textTx) Rollback() error {
	_, err := t.ExecContext(context.Background(), "ROLLBACK", nil)
	return err
}

// Connector returns a connector for [database/sql.OpenDB]. c is a connector of lib/pq or pgx, or a
// wrapper that returns their connections unchanged. With another driver, Connect fails.
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
