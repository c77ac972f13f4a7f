package dialect

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"sync/atomic"
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
	named    map[string]Statement    // statements that name the schema of their tables, by the names of the others
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
	r := &Reader{dialect: d, db: db, prepared: map[any]map[string]bool{}, named: map[string]Statement{}}
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
	s = r.naming(s)
	var err error
	for range r.db.Stats().Idle + 2 { // see Begin
		if err = r.readOnce(ctx, s, args, read); !errors.Is(err, driver.ErrBadConn) {
			return err
		}
	}
	return err
}

// naming returns s, with the name of the schema of its tables if this is known. A
// function of the user may have changed the search path of the connection, and outside
// of a transaction it cannot be restored.
func (r *Reader) naming(s Statement) Statement {
	named, ok := r.named[s.name]
	if ok {
		return named
	}
	d := r.dialect.known(r.db)
	if d.config.Schema == r.dialect.config.Schema {
		return s
	}
	named = d.Statement(s.prelude, s.template)
	r.named[s.name] = named
	return named
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

// Connections of pgx keep the plans of their statements, and so do the connections that
// a [Reader] uses. PostgreSQL makes a new plan only after the table was analyzed. So a
// plan can come from a time when the table was empty. Such a plan reads the whole
// table, and takes seconds when the table has a million rows. Therefore this package
// discards the plans of a connection after slow work.
const (
	discardPlans = `DISCARD PLANS`

	// Queries that take longer than slowWork may have an old plan.
	slowWork = 20 * time.Millisecond

	// discardEvery is the minimum time between two discards. On a busy machine, all work is
	// slow. As new plans take up to 2 ms, more frequent discards would make the work even
	// slower.
	discardEvery = 200 * time.Millisecond
)

// plans decides when plans are discarded.
type plans struct {
	slow      time.Duration
	discarded atomic.Int64 // time of the last discard, in nanoseconds since 1970
}

// old reports whether the plans of a connection must be discarded after work that has
// begun at the given time.
func (p *plans) old(began time.Time) bool {
	now := time.Now()
	last := p.discarded.Load()
	return now.Sub(began) > p.slow && now.Sub(time.Unix(0, last)) > discardEvery && p.discarded.CompareAndSwap(last, now.UnixNano())
}

// replanning returns a function that calls the function work, and then discards old
// plans.
func (d Dialect) replanning(ctx context.Context, db *sql.DB, work func(tx *sql.Tx) error) func(tx *sql.Tx) error {
	if d.SQLite() || kindOf(db) != pgx {
		return work
	}
	return func(tx *sql.Tx) error {
		began := time.Now()
		err := work(tx)
		if err == nil && d.plans.old(began) {
			_, err = tx.ExecContext(ctx, discardPlans)
		}
		return err
	}
}

// Churn detects a pool that closes most connections after each use. By default
// database/sql keeps only two idle connections. With more concurrent transactions, most
// of the transactions wait until the server has started a process for a new connection.
type Churn struct {
	uses     atomic.Int64
	closed   atomic.Int64 // number of closed connections at the last check
	reported atomic.Bool
}

// Churn checks the pool every lookEvery transactions. It reports a pool that has closed
// closedLimit connections since the last check. A short burst of load closes fewer
// connections.
const (
	lookEvery   = 500
	closedLimit = lookEvery / 5
)

// Used counts a transaction. It returns true, once, if the pool has closed many
// connections recently.
func (c *Churn) Used(db *sql.DB) bool {
	n := c.uses.Add(1)
	if n%lookEvery != 1 {
		return false
	}
	closed := db.Stats().MaxIdleClosed
	before := c.closed.Swap(closed)
	return n > 1 && closed-before >= closedLimit && !c.reported.Swap(true)
}

// Prepares reports whether tx belongs to pgx, which keeps statements with arguments
// prepared. It returns false for other drivers, and for pgx behind a wrapper. It reads
// private fields of tx, because a transaction has no method that returns its driver. If
// a new version of Go has different fields, Prepares returns false.
func Prepares(tx *sql.Tx) bool {
	field := reflect.ValueOf(tx).Elem()
	for _, step := range [...]struct {
		name string
		kind reflect.Kind
	}{{"dc", reflect.Pointer}, {"ci", reflect.Interface}} {
		if field = field.FieldByName(step.name); !field.IsValid() || field.Kind() != step.kind || field.IsNil() {
			return false
		}
		field = field.Elem()
	}
	conn := field.Type()
	return conn.Kind() == reflect.Pointer && strings.HasPrefix(conn.Elem().PkgPath(), "github.com/jackc/pgx/")
}
