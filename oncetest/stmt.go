package oncetest

import (
	"context"
	"database/sql/driver"
	"errors"
)

// stmt wraps a prepared statement of the driver.
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

// convertingStmt is a stmt for drivers that convert arguments by column, with
// driver.ColumnConverter. A separate type is needed, because database/sql treats every
// statement that has the method ColumnConverter as such a statement.
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
