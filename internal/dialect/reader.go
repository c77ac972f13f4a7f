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

	"github.com/watermill-once/once/internal/usercode"
)

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

// Reader executes queries outside of transactions, in one round trip each. It is not safe for
// concurrent use.
//
// lib/pq needs two round trips for a query with arguments, so they are written into the text.
// PostgreSQL would parse and plan this text each time, which takes longer than reading a few rows,
// so the Reader prepares it on each connection. The name is a digest of the text, so it means the
// same query in all processes that share connections behind a pooler.
type Reader struct {
	dialect  Dialect
	db       *sql.DB
	kind     driverKind
	prepared map[any]map[string]bool // names of the prepared queries of each of lib/pq's connections
	failed   int                     // how many prepared queries could not be executed
	named    map[string]Statement    // statements that name the schema of their tables, by the names of the others
}

const (
	// After preparedFailures, queries are no longer prepared: a pooler in transaction mode may send
	// each statement to another connection, which does not know the prepared query.
	preparedFailures = 5

	// preparedConns limits Reader.prepared, which also contains closed connections.
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

// Usable reports whether Read can be used. It returns false for drivers that may need two round
// trips, because behind a pooler a statement of another client could come between them, and for
// SQLite, which has none.
func (r *Reader) Usable() bool { return r.kind != unknownDriver }

// AsText reports whether Read receives all values as text. Payloads then arrive as hexadecimal
// digits, which cost more than the binary form.
func (r *Reader) AsText() bool { return r.kind == libPQ }

// Read executes a query at the default isolation level, and passes its rows to read.
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

// naming names the schema of the tables if it is known: a function of the user may have changed the
// search path of the connection, and outside of a transaction it cannot be restored.
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
		return fmt.Errorf("read: %w", usercode.HideDSN(err))
	}
	defer conn.Close()
	began := time.Now()
	if r.kind == libPQ {
		err = r.readText(ctx, conn, s, args, read)
	} else {
		err = readRows(ctx, conn, s.query, args, read)
	}
	if isReadOnly(err) { // the query, or read, has found this out
		leave(conn)
	}
	if err == nil && r.dialect.plans.old(began) {
		_, err = conn.ExecContext(ctx, discardPlans)
		if errors.Is(err, driver.ErrBadConn) {
			err = nil // the rows were read, and Read must not read them again
		}
	}
	return err
}

// readText writes the arguments into the text, prepared if possible.
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

// readPrepared returns false without an error if the server refuses to prepare or to execute. The
// text alone then succeeds, or shows the reason.
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

// unusable reports whether the server cannot execute the prepared form. The text may succeed.
func unusable(err error) bool {
	state := State(err)
	return state == "26000" || // invalid_sql_statement_name
		state == "0A000" // feature_not_supported: the columns of the result have changed
}

// prepare returns false if the query cannot be prepared on this connection.
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
	// Another Reader may have prepared it. PREPARE would then write an error into the server's log.
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

// pgx and [Reader] keep the plans of statements. PostgreSQL makes a new one only after the table
// was analyzed, so a plan from a time when the table was empty can read all of its million rows,
// for seconds. Therefore plans are discarded after slow work.
const (
	discardPlans = `DISCARD PLANS`

	slowWork = 20 * time.Millisecond

	// discardEvery is the minimum time between two discards. On a busy machine all work is slow,
	// and new plans take up to 2 ms.
	discardEvery = 200 * time.Millisecond
)

type plans struct {
	slow      time.Duration
	discarded atomic.Int64 // time of the last discard, in nanoseconds since 1970
}

func (p *plans) old(began time.Time) bool {
	now := time.Now()
	last := p.discarded.Load()
	return now.Sub(began) > p.slow && now.Sub(time.Unix(0, last)) > discardEvery && p.discarded.CompareAndSwap(last, now.UnixNano())
}

// replanning discards old plans after work.
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

// Churn detects a pool that closes most connections after each use: by default database/sql keeps
// only two idle ones, and more concurrent transactions wait for the server to start processes.
type Churn struct {
	uses     atomic.Int64
	closed   atomic.Int64 // number of closed connections at the last check
	reported atomic.Bool
}

// Every lookEvery transactions, closedLimit closed connections are too many for a burst.
const (
	lookEvery   = 500
	closedLimit = lookEvery / 5
)

// Used counts a transaction. It returns true, once, if the pool has closed many connections.
func (c *Churn) Used(db *sql.DB) bool {
	n := c.uses.Add(1)
	if n%lookEvery != 1 {
		return false
	}
	closed := db.Stats().MaxIdleClosed
	before := c.closed.Swap(closed)
	return n > 1 && closed-before >= closedLimit && !c.reported.Swap(true)
}

// Prepares reports whether tx belongs to pgx, which keeps statements with arguments prepared. A
// transaction does not say which driver it has, so this reads private fields, and returns false for
// a wrapper, or a Go with other fields.
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
