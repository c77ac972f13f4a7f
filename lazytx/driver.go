package lazytx

import (
	"context"
	"database/sql/driver"
	"fmt"
	"reflect"
)

// postgres contains the methods that connections of lib/pq and of pgx have. Both send
// a statement without arguments by the simple query protocol, so that it may contain
// several statements.
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

// libpq contains the other methods of a connection of lib/pq. Such a connection is also
// a driver.Tx: its methods end the open transaction of the connection, no matter how
// that transaction was begun.
type libpq interface {
	postgres
	driver.Tx
	driver.Validator
}

// pgx is the package of pgx's connections for database/sql.
const pgx = "github.com/jackc/pgx/v5/stdlib"

// newConn wraps a connection of lib/pq or of pgx.
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

// textTx ends a transaction of pgx that began with a text.
type textTx struct{ postgres }

// Commit implements driver.Tx. PostgreSQL answers the COMMIT of a failed transaction
// with a rollback and without an error, which only pgx itself can see. SELECT without
// columns fails in such a transaction, so COMMIT is not executed.
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
