package oncetest

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"regexp"
	"sync"
)

// wrap returns a pool that wraps connections of db, and injects the fault of a delivery. It keeps
// no idle connections: the comparison of the tables may need the only one of db.
func wrap(db *sql.DB) *sql.DB { return wrapFor(db, nil) }

// The connections also report their statements to call, if any.
func wrapFor(db *sql.DB, call *call) *sql.DB {
	wrapped := sql.OpenDB(connector{db, call})
	wrapped.SetMaxIdleConns(-1)
	return wrapped
}

// connector takes connections from another pool, and needs neither its address nor its driver.
type connector struct {
	db   *sql.DB
	call *call // may be nil
}

func (c connector) Driver() driver.Driver { return c.db.Driver() }

func (c connector) Connect(ctx context.Context) (driver.Conn, error) {
	pooled, err := c.db.Conn(ctx)
	if err != nil {
		return nil, err
	}
	wrapped := &conn{pooled: pooled, call: c.call}
	// The pool cannot give the connection to another user before wrapped is closed.
	err = pooled.Raw(func(inner any) error {
		var ok bool
		if wrapped.inner, ok = inner.(driver.Conn); !ok {
			return fmt.Errorf("oncetest: the driver's connection is a %T", inner)
		}
		return nil
	})
	if err != nil {
		_ = pooled.Close()
		return nil, err
	}
	return wrapped, nil
}

// call is one of two concurrent calls of a service. It pauses after one of its statements with the
// text insert, which publish events, until resume is closed. A nil call does not pause.
type call struct {
	insert     *regexp.Regexp // text that every statement that publishes contains
	pauseAfter int            // number of statements that publish, after which the call pauses; 0 means never

	paused chan struct{} // closed when the call pauses
	resume chan struct{} // closed to let the call continue

	mu         sync.Mutex
	published  int // number of statements that have published so far
	hasPaused  bool
	last       string   // the latest statement
	statements []string // statements after the pause
}

func newCall(table string, pauseAfter int) *call {
	insert := regexp.MustCompile(`INTO ("\w+"\.)?` + regexp.QuoteMeta(table)) // the outbox may name the schema of its table
	return &call{insert: insert, pauseAfter: pauseAfter, paused: make(chan struct{}), resume: make(chan struct{})}
}

func (c *call) statement(sql string) {
	if c == nil {
		return
	}
	c.pauseIfDue()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.last = sql
	if c.hasPaused {
		c.statements = append(c.statements, sql)
	}
	if c.insert.MatchString(sql) {
		c.published++
	}
}

// After driver.ErrSkip, database/sql prepares the statement and runs it again.
func (c *call) undo() {
	if c == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.insert.MatchString(c.last) {
		c.published--
	}
	if n := len(c.statements); n > 0 {
		c.statements = c.statements[:n-1]
	}
}

func (c *call) commit() {
	if c != nil {
		c.pauseIfDue()
	}
}

// pauseIfDue pauses the call once, after pauseAfter publishing statements, until resume is closed.
func (c *call) pauseIfDue() {
	c.mu.Lock()
	due := !c.hasPaused && c.pauseAfter > 0 && c.published == c.pauseAfter
	c.hasPaused = c.hasPaused || due
	c.mu.Unlock()
	if due {
		close(c.paused)
		<-c.resume
	}
}

func (c *call) statementsAfterPause() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.statements
}

type stmt struct {
	conn  *conn
	inner driver.Stmt
	query string
}

var (
	_ driver.StmtExecContext   = (*stmt)(nil)
	_ driver.StmtQueryContext  = (*stmt)(nil)
	_ driver.NamedValueChecker = (*stmt)(nil)
)

// convertingStmt is a stmt with driver.ColumnConverter, a separate type because database/sql asks
// every statement that has the method.
type convertingStmt struct {
	*stmt
	driver.ColumnConverter
}

func newStmt(c *conn, inner driver.Stmt, query string) driver.Stmt {
	s := &stmt{conn: c, inner: inner, query: query}
	if converter, ok := inner.(driver.ColumnConverter); ok { //nolint:staticcheck // some drivers still implement it
		return convertingStmt{s, converter}
	}
	return s
}

func (s *stmt) Close() error { return s.inner.Close() }

func (s *stmt) NumInput() int { return s.inner.NumInput() }

// Exec implements driver.Stmt. database/sql calls ExecContext instead.
func (s *stmt) Exec(args []driver.Value) (driver.Result, error) {
	return s.ExecContext(context.Background(), named(args))
}

// Query implements driver.Stmt. database/sql calls QueryContext instead.
func (s *stmt) Query(args []driver.Value) (driver.Rows, error) {
	return s.QueryContext(context.Background(), named(args))
}

func (s *stmt) ExecContext(ctx context.Context, args []driver.NamedValue) (driver.Result, error) {
	if err := s.conn.statement(ctx, s.query); err != nil {
		return nil, err
	}
	if inner, ok := s.inner.(driver.StmtExecContext); ok {
		return inner.ExecContext(ctx, args)
	}
	values, err := unnamed(args)
	if err != nil {
		return nil, err
	}
	return s.inner.Exec(values) //nolint:staticcheck // for drivers without StmtExecContext
}

func (s *stmt) QueryContext(ctx context.Context, args []driver.NamedValue) (driver.Rows, error) {
	if err := s.conn.statement(ctx, s.query); err != nil {
		return nil, err
	}
	if inner, ok := s.inner.(driver.StmtQueryContext); ok {
		return inner.QueryContext(ctx, args)
	}
	values, err := unnamed(args)
	if err != nil {
		return nil, err
	}
	return s.inner.Query(values) //nolint:staticcheck // for drivers without StmtQueryContext
}

func (s *stmt) CheckNamedValue(value *driver.NamedValue) error {
	if checker, ok := s.inner.(driver.NamedValueChecker); ok {
		return checker.CheckNamedValue(value)
	}
	return s.conn.CheckNamedValue(value)
}

func named(args []driver.Value) []driver.NamedValue {
	all := make([]driver.NamedValue, len(args))
	for i, value := range args {
		all[i] = driver.NamedValue{Ordinal: i + 1, Value: value}
	}
	return all
}

func unnamed(args []driver.NamedValue) ([]driver.Value, error) {
	all := make([]driver.Value, len(args))
	for i, value := range args {
		if value.Name != "" {
			return nil, errors.New("oncetest: the driver has no named parameters")
		}
		all[i] = value.Value
	}
	return all, nil
}

type tx struct{ *conn }

func (t tx) Commit() error {
	if t.gone {
		return errLost
	}
	t.call.commit()
	var fault kind
	if t.delivery != nil {
		fault = t.delivery.commit()
	}
	if fault == lost {
		return t.lose()
	}
	err := t.tx.Commit()
	t.tx = nil
	if err == nil && fault == lostAfterCommit {
		return t.lose()
	}
	return err
}

func (t tx) Rollback() error {
	if t.delivery != nil {
		t.delivery.rollback()
	}
	if t.gone {
		return errLost
	}
	inner := t.tx
	t.tx = nil
	return inner.Rollback()
}
