package roles

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/lib/pq"
)

// recorder records the distinct statements of a pool, and the statements that were denied.
type recorder struct {
	mu      sync.Mutex
	texts   []string
	refused []string
}

func (r *recorder) add(text string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !slices.Contains(r.texts, text) {
		r.texts = append(r.texts, text)
	}
}

func (r *recorder) answer(text string, err error) error {
	if refused(err) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.refused = append(r.refused, fmt.Sprintf("%v: %s", err, strings.Join(strings.Fields(text), " ")))
	}
	return err
}

// seen returns all recorded statements.
func (r *recorder) seen() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.texts)
}

// denied returns the denied statements.
func (r *recorder) denied() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Compact(slices.Clone(r.refused))
}

// refused reports whether the database has denied a right. A refused write to a view also counts,
// because PostgreSQL refuses such a write before it checks the rights.
func refused(err error) bool { return pq.As(err, "42501", "42809", "55000") != nil }

// open returns a pool whose statements are recorded.
func (r *recorder) open(config pq.Config) (*sql.DB, error) {
	inner, err := pq.NewConnectorConfig(config)
	if err != nil {
		return nil, err
	}
	return sql.OpenDB(connector{inner, r}), nil
}

type connector struct {
	driver.Connector

	recorder *recorder
}

func (c connector) Connect(ctx context.Context) (driver.Conn, error) {
	opened, err := c.Connector.Connect(ctx)
	if err != nil {
		return nil, err
	}
	inner, ok := opened.(full)
	if !ok {
		return nil, fmt.Errorf("the driver's connection is a %T", opened)
	}
	return &conn{inner, c.recorder}, nil
}

// full lists the interfaces of a connection of lib/pq.
type full interface {
	driver.Conn
	driver.ConnBeginTx
	driver.ExecerContext
	driver.QueryerContext
	driver.NamedValueChecker
	driver.Pinger
	driver.SessionResetter
	driver.Validator
}

type conn struct {
	full

	recorder *recorder
}

func (c *conn) ExecContext(ctx context.Context, text string, args []driver.NamedValue) (driver.Result, error) {
	c.recorder.add(text)
	result, err := c.full.ExecContext(ctx, text, args)
	return result, c.recorder.answer(text, err)
}

func (c *conn) QueryContext(ctx context.Context, text string, args []driver.NamedValue) (driver.Rows, error) {
	c.recorder.add(text)
	rows, err := c.full.QueryContext(ctx, text, args)
	return rows, c.recorder.answer(text, err)
}
