package dialect

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"reflect"

	"github.com/watermill-once/once/internal/dsn"
)

// driverKind says how a driver executes a query in one round trip.
type driverKind int

const (
	unknownDriver driverKind = iota // perhaps not in one round trip
	libPQ                           // as a text without arguments
	pgx                             // with arguments
)

func kindOf(db *sql.DB) driverKind {
	t := reflect.TypeOf(db.Driver())
	if t != nil && t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	switch {
	case t == nil:
		return unknownDriver
	case t.PkgPath() == "github.com/lib/pq":
		return libPQ
	case t.PkgPath() == "github.com/jackc/pgx/v5/stdlib":
		return pgx
	}
	return unknownDriver
}

// CanReadAlone reports whether [Dialect.ReadAlone] can be used with db. It is false for
// drivers that are not known to execute a query in one round trip. Behind a pooler, a
// statement of another client could come between two round trips outside of a
// transaction. SQLite has no round trips.
func (d Dialect) CanReadAlone(db *sql.DB) bool { return !d.SQLite() && kindOf(db) != unknownDriver }

// ReadAlone executes a query in one round trip, outside of a transaction, and passes its
// rows to read. It uses the default isolation level of the database.
func (d Dialect) ReadAlone(ctx context.Context, db *sql.DB, s Statement, args []any, read func(rows *sql.Rows) error) error {
	query := s.query
	if kindOf(db) == libPQ {
		var err error
		if query, err = s.text(args); err != nil {
			return err
		}
		args = nil
	}
	var err error
	for range db.Stats().Idle + 2 { // see Begin
		if err = readOn(ctx, db, query, args, read); !errors.Is(err, driver.ErrBadConn) {
			return err
		}
	}
	return err
}

func readOn(ctx context.Context, db *sql.DB, query string, args []any, read func(rows *sql.Rows) error) error {
	conn, err := db.Conn(ctx)
	if err != nil {
		return fmt.Errorf("read: %w", dsn.Hide(err))
	}
	defer conn.Close()
	rows, err := conn.QueryContext(ctx, query, args...)
	if err != nil {
		return err
	}
	defer rows.Close()
	if err := read(rows); err != nil {
		return err
	}
	return rows.Err()
}
