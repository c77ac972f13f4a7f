package dialect

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"reflect"
	"time"

	"github.com/watermill-once/once/internal/dsn"
)

// driverKind says how a driver can execute a query in one round trip.
type driverKind int

const (
	unknownDriver driverKind = iota // may need several round trips
	libPQ                           // can do so if the query has no arguments
	pgx                             // can do so with arguments, too
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

// Reader executes queries outside of transactions, in one round trip each. It is not
// safe for concurrent use.
//
// lib/pq needs two round trips for a query with arguments. So with lib/pq the arguments
// are written into the text. PostgreSQL would parse and plan this text each time, which
// takes longer than reading a few rows. So the Reader prepares a query on each
// connection. The name of a prepared query is a digest of its text. So behind a pooler,
// where processes share connections, the same name always means the same query.
type Reader struct {
	dialect  Dialect
	db       *sql.DB
	kind     driverKind
	prepared map[any]map[string]bool // names of the prepared queries of each of lib/pq's connections
	failed   int                     // how many prepared queries could not be executed
}

const (
	// preparedFailures is how many prepared queries may fail. After that, the Reader no
	// longer prepares queries: a pooler in transaction mode may send each statement to
	// another connection, so that a prepared query is not found.
	preparedFailures = 5

	// preparedConns is the maximum number of connections in Reader.prepared. This map also
	// contains connections that are closed.
	preparedConns = 16
)

// Reader returns a Reader for db.
func (d Dialect) Reader(db *sql.DB) *Reader {
	r := &Reader{dialect: d, db: db, prepared: map[any]map[string]bool{}}
	if !d.SQLite() {
		r.kind = kindOf(db)
	}
	return r
}

// Usable reports whether Read can be used. It returns false for drivers that may need
// more than one round trip for a query: outside of a transaction and behind a pooler, a
// statement of another client could come between two round trips. It also returns false
// for SQLite, which has no round trips.
func (r *Reader) Usable() bool { return r.kind != unknownDriver }

// AsText reports whether Read receives all values as text. Payloads then arrive as
// hexadecimal digits. This costs server and client more than the binary form, which a
// query with arguments receives.
func (r *Reader) AsText() bool { return r.kind == libPQ }

// Read executes a query, and passes its rows to the function read. It uses the default
// isolation level of the database.
func (r *Reader) Read(ctx context.Context, s Statement, args []any, read func(rows *sql.Rows) error) error {
	var err error
	for range r.db.Stats().Idle + 2 { // see Begin
		if err = r.readOnce(ctx, s, args, read); !errors.Is(err, driver.ErrBadConn) {
			return err
		}
	}
	return err
}

func (r *Reader) readOnce(ctx context.Context, s Statement, args []any, read func(rows *sql.Rows) error) error {
	conn, err := r.db.Conn(ctx)
	if err != nil {
		return fmt.Errorf("read: %w", dsn.Hide(err))
	}
	defer conn.Close()
	began := time.Now()
	if r.kind == libPQ {
		err = r.readText(ctx, conn, s, args, read)
	} else {
		err = readRows(ctx, conn, s.query, args, read)
	}
	if err == nil && r.dialect.plans.old(began) {
		_, err = conn.ExecContext(ctx, discardPlans)
		if errors.Is(err, driver.ErrBadConn) {
			err = nil // the rows were read, and Read must not read them again
		}
	}
	return err
}

// readText executes a query whose arguments are written into its text. It first tries
// to execute the query as a prepared query. If this is not possible, it sends the text
// of the query.
func (r *Reader) readText(ctx context.Context, conn *sql.Conn, s Statement, args []any, read func(rows *sql.Rows) error) error {
	trying := r.failed < preparedFailures
	if trying {
		if done, err := r.readPrepared(ctx, conn, s, args, read); done || err != nil {
			return err
		}
	}
	text, err := s.text(args)
	if err != nil {
		return err
	}
	err = readRows(ctx, conn, text, nil, read)
	if trying && err == nil {
		r.failed++
	}
	return err
}

// readPrepared prepares a query, and executes the prepared query. If the server refuses
// one of these two steps, readPrepared returns false without an error. The caller then
// sends the text of the query, which succeeds, or fails with an error that shows the
// reason.
func (r *Reader) readPrepared(
	ctx context.Context, conn *sql.Conn, s Statement, args []any, read func(rows *sql.Rows) error,
) (done bool, err error) {
	prepared, err := r.prepare(ctx, conn, s)
	if err != nil || !prepared {
		return false, err
	}
	call, err := s.call(args)
	if err != nil {
		return false, err
	}
	err = readRows(ctx, conn, call, nil, read)
	if unusable(err) {
		clear(r.prepared)
		return false, nil
	}
	return err == nil, err
}

// unusable reports whether err means that the server cannot execute the prepared form
// of a query. The same query may succeed if its text is sent instead.
func unusable(err error) bool {
	state := State(err)
	return state == "26000" || // invalid_sql_statement_name
		state == "0A000" // feature_not_supported: the columns of the result have changed
}

// prepare prepares a query on a connection, unless it is prepared already. It returns
// false if the query cannot be prepared on this connection.
func (r *Reader) prepare(ctx context.Context, conn *sql.Conn, s Statement) (prepared bool, err error) {
	var id any
	err = conn.Raw(func(driverConn any) error {
		if reflect.TypeOf(driverConn).Kind() == reflect.Pointer {
			id = driverConn
		}
		return nil
	})
	if err != nil || id == nil {
		return false, err
	}
	if r.prepared[id][s.name] {
		return true, nil
	}
	// Another Reader may have prepared the query on this connection. PREPARE would then
	// write an error into the log of the server.
	var known bool
	err = conn.QueryRowContext(ctx, "SELECT EXISTS (SELECT FROM pg_prepared_statements WHERE name = '"+s.name+"')").Scan(&known)
	if err == nil && !known {
		_, err = conn.ExecContext(ctx, "PREPARE "+s.name+" AS "+s.query)
	}
	switch {
	case err == nil, State(err) == "42P05": // duplicate_prepared_statement, possible behind a pooler
	case State(err) == "":
		return false, err
	default:
		return false, nil
	}
	if r.prepared[id] == nil {
		if len(r.prepared) >= preparedConns {
			clear(r.prepared)
		}
		r.prepared[id] = map[string]bool{}
	}
	r.prepared[id][s.name] = true
	return true, nil
}

func readRows(ctx context.Context, conn *sql.Conn, query string, args []any, read func(rows *sql.Rows) error) error {
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
