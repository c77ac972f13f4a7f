package conformance

import (
	"bytes"
	"context"
	"database/sql"
	"database/sql/driver"
	"net"
	"os"
	"strings"
	"sync/atomic"
	"syscall"

	"github.com/lib/pq"

	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/outbox/lazytx"
)

// point is a step of the consumer at which its process is killed.
type point struct {
	Of   string `json:"of"` // key of statements, or a step of the subscriber
	When string `json:"when"`
}

// Moments relative to a statement, or to the transaction that contains the statement.
const (
	before    = "before"
	after     = "after"
	committed = "before the commit"
	sent      = "while COMMIT is under way" // PostgreSQL only: COMMIT was sent, and its reply was not read
	done      = "after the commit"
)

// statements maps the name of each statement to a text that only this statement contains. The
// names of tables are without their schema.
var statements = map[string]string{
	"inbox":      `INSERT INTO "once_inbox"`,
	"effect":     `INSERT INTO effects`,
	"outbox":     `INSERT INTO "once_outbox"`,
	"park":       `INSERT INTO "once_parked" (`,
	"claim":      `crashes = CASE WHEN`,
	"postpone":   `rounds = `,
	"early":      `early_since = COALESCE(`,
	"version":    `"once_versions" SET version`,
	"first":      `INSERT INTO "once_versions" (`,
	"wake":       `AND token IS NULL`,
	"promote":    `SET state = 'waiting', due_at = `,
	"resolve":    `DELETE FROM "once_parked"`,
	"quarantine": `SET state = 'quarantined'`,
}

// armed is the point at which this process will be killed.
var armed point

// sending means that the process must be killed as soon as it has sent COMMIT.
var sending atomic.Bool

func reach(of, when string) {
	if armed.Of == of && armed.When == when {
		die()
	}
}

// die kills the process with SIGKILL, as the operating system or an operator may do. No
// cleanup runs.
func die() {
	_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	select {}
}

// open opens a database whose connections kill the process at the armed point.
func (l life) open() (*sql.DB, error) {
	if l.Dialect == "postgres" {
		connector, err := pq.NewConnector(l.DSN)
		if err != nil {
			return nil, err
		}
		connector.Dialer(kit.Dialer(func(conn net.Conn) net.Conn { return wire{conn} }))
		if l.Lazy {
			return sql.OpenDB(watched{lazytx.Connector(connector)}), nil
		}
		return sql.OpenDB(watched{connector}), nil
	}
	db, err := sql.Open("sqlite", l.DSN)
	if err != nil {
		return nil, err
	}
	defer db.Close()
	return sql.OpenDB(watched{named{db.Driver(), l.DSN}}), nil
}

type named struct {
	driver driver.Driver
	dsn    string
}

func (n named) Connect(context.Context) (driver.Conn, error) { return n.driver.Open(n.dsn) }
func (n named) Driver() driver.Driver                        { return n.driver }

type watched struct{ driver.Connector }

func (w watched) Connect(ctx context.Context) (driver.Conn, error) {
	inner, err := w.Connector.Connect(ctx)
	if err != nil {
		return nil, err
	}
	return &conn{Conn: inner}, nil
}

type conn struct {
	driver.Conn

	marked bool // the transaction has executed the armed statement
}

func (c *conn) statement(query string) (passed func()) {
	pattern, ok := statements[armed.Of]
	if !ok || !strings.Contains(strings.ReplaceAll(strings.Join(strings.Fields(query), " "), `"public".`, ""), pattern) {
		return func() {}
	}
	reach(armed.Of, before)
	return func() {
		c.marked = true
		reach(armed.Of, after)
	}
}

func (c *conn) ExecContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Result, error) {
	passed := c.statement(query)
	result, err := c.Conn.(driver.ExecerContext).ExecContext(ctx, query, args)
	if err == nil {
		passed()
	}
	return result, err
}

func (c *conn) QueryContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Rows, error) {
	passed := c.statement(query)
	rows, err := c.Conn.(driver.QueryerContext).QueryContext(ctx, query, args)
	if err == nil && armed.Of != "claim" { // the rows of a claim must be read before the process is killed
		passed()
	}
	c.marked = c.marked || err == nil && armed.Of == "claim" && strings.Contains(query, statements["claim"])
	return rows, err
}

func (c *conn) BeginTx(ctx context.Context, options driver.TxOptions) (driver.Tx, error) {
	inner, err := c.Conn.(driver.ConnBeginTx).BeginTx(ctx, options)
	c.marked = false
	return tx{Tx: inner, conn: c}, err
}

func (c *conn) CheckNamedValue(value *driver.NamedValue) error {
	if checker, ok := c.Conn.(driver.NamedValueChecker); ok {
		return checker.CheckNamedValue(value)
	}
	return driver.ErrSkip
}

func (c *conn) ResetSession(ctx context.Context) error {
	if resetter, ok := c.Conn.(driver.SessionResetter); ok {
		return resetter.ResetSession(ctx)
	}
	return nil
}

func (c *conn) IsValid() bool {
	validator, ok := c.Conn.(driver.Validator)
	return !ok || validator.IsValid()
}

type tx struct {
	driver.Tx

	conn *conn
}

func (t tx) Commit() error {
	if !t.conn.marked {
		return t.Tx.Commit()
	}
	reach(armed.Of, committed)
	sending.Store(armed.When == sent)
	err := t.Tx.Commit()
	if err == nil {
		reach(armed.Of, done)
	}
	return err
}

// wire can kill the process immediately after it has sent COMMIT.
type wire struct{ net.Conn }

func (w wire) Write(b []byte) (int, error) {
	n, err := w.Conn.Write(b)
	if sending.Load() && bytes.Contains(b, []byte("COMMIT")) {
		die()
	}
	return n, err
}
