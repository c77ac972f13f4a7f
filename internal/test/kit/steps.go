package kit

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
)

// ErrInjected is the error with which [EachStepFails] makes a step fail.
var ErrInjected = errors.New("kit: this step is made to fail")

// EachStepFails calls the function operation several times. In call n, the n-th step of
// the operation in the database fails. A step is the begin or the commit of a
// transaction, a statement, reading the rows of a statement, or reading the number of
// affected rows. Each of these calls must return [ErrInjected]. The last call has no
// failing step, and must succeed. Set whole if the operation is one
// transaction. Then a failed call must leave all tables unchanged.
func EachStepFails(t *testing.T, db Database, whole bool, operation func(db *sql.DB) error) {
	t.Helper()
	contents := contentsQuery(t, db)
	before := lines(t, db, contents)
	for n := int64(1); ; n++ {
		pool, failed := FailingStep(db, n)
		err := operation(pool)
		_ = pool.Close()
		step := failed()
		if step == "" {
			if err != nil {
				t.Errorf("without a failing step: %v", err)
			}
			if n == 1 {
				t.Error("it takes no step")
			}
			return
		}
		if !errors.Is(err, ErrInjected) {
			t.Errorf("step %d (%s) failed, and the error is %v", n, step, err)
		}
		if whole {
			if after := lines(t, db, contents); !slices.Equal(after, before) {
				t.Errorf("step %d (%s) failed, and the tables have changed: %s", n, step, firstDifference(before, after))
			}
		}
		if t.Failed() {
			return
		}
	}
}

// FailingStep returns a pool. The n-th step in the connections of this pool fails with
// [ErrInjected], see [EachStepFails]. FailingStep also returns a function, failed. Call
// it to get a description of the step that failed, or "" if fewer than n steps were
// taken.
func FailingStep(db Database, n int64) (pool *sql.DB, failed func() string) {
	faults := &stepFaults{db: db.DB, at: n}
	pool = sql.OpenDB(faults)
	pool.SetMaxIdleConns(-1) // if db has only one connection, the test also needs it
	return pool, func() string {
		what, _ := faults.what.Load().(string)
		return what
	}
}

// contentsQuery returns a query for the rows of all tables. The query returns one line
// of text for each row.
func contentsQuery(t *testing.T, db Database) string {
	t.Helper()
	tables := `SELECT 'SELECT ''' || m.name || ': '' || concat_ws('' | '', ' || group_concat('quote("' || c.name || '")') ||
			') AS line FROM "' || m.name || '"'
		FROM sqlite_master AS m, pragma_table_info(m.name) AS c WHERE m.type = 'table' GROUP BY m.name`
	if db.Dialect == "postgres" {
		tables = `SELECT format('SELECT %L || t::text AS line FROM %I AS t', relname || ': ', relname)
			FROM pg_class WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace`
	}
	return strings.Join(lines(t, db, tables), " UNION ALL ") + " ORDER BY line"
}

func lines(t *testing.T, db Database, query string) (all []string) {
	t.Helper()
	rows, err := db.QueryContext(t.Context(), query)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	for rows.Next() {
		var line string
		if err := rows.Scan(&line); err != nil {
			t.Fatal(err)
		}
		all = append(all, line)
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	return all
}

func firstDifference(old, now []string) string {
	for _, line := range now {
		if !slices.Contains(old, line) {
			return fmt.Sprintf("+ %.200q", line)
		}
	}
	for _, line := range old {
		if !slices.Contains(now, line) {
			return fmt.Sprintf("- %.200q", line)
		}
	}
	return "rows have moved"
}

// stepFaults is a driver.Connector that takes its connections from another pool, and
// makes one step fail. The field at is the number of this step.
type stepFaults struct {
	db    *sql.DB
	at    int64
	taken atomic.Int64
	what  atomic.Value // the step that failed, a string
}

// fails counts a step. It returns ErrInjected if this step must fail, and otherwise
// nil.
func (f *stepFaults) fails(what string) error {
	if f.taken.Add(1) != f.at {
		return nil
	}
	f.what.Store(what)
	return ErrInjected
}

func (f *stepFaults) Driver() driver.Driver { return f.db.Driver() }

func (f *stepFaults) Connect(ctx context.Context) (driver.Conn, error) {
	pooled, err := f.db.Conn(ctx)
	if err != nil {
		return nil, err
	}
	c := &faultyConn{pooled: pooled, faults: f}
	// The driver's connection is used after Raw has returned. This is safe, because
	// pooled stays reserved until faultyConn is closed.
	err = pooled.Raw(func(inner any) error {
		var ok bool
		if c.Conn, ok = inner.(driver.Conn); !ok {
			return fmt.Errorf("kit: the driver's connection is a %T", inner)
		}
		return nil
	})
	return c, err
}

type faultyConn struct {
	driver.Conn

	pooled *sql.Conn
	faults *stepFaults
}

func (c *faultyConn) Close() error { return c.pooled.Close() }

func (c *faultyConn) CheckNamedValue(v *driver.NamedValue) error {
	if checker, ok := c.Conn.(driver.NamedValueChecker); ok {
		return checker.CheckNamedValue(v)
	}
	return driver.ErrSkip
}

func (c *faultyConn) BeginTx(ctx context.Context, options driver.TxOptions) (driver.Tx, error) {
	if err := c.faults.fails("BEGIN"); err != nil {
		return nil, err
	}
	tx, err := c.Conn.(driver.ConnBeginTx).BeginTx(ctx, options)
	return faultyTx{tx, c.faults}, err
}

func (c *faultyConn) ExecContext(ctx context.Context, text string, args []driver.NamedValue) (driver.Result, error) {
	if err := c.faults.fails(text); err != nil {
		return nil, err
	}
	result, err := c.Conn.(driver.ExecerContext).ExecContext(ctx, text, args)
	return faultyResult{result, text, c.faults}, err
}

func (c *faultyConn) QueryContext(ctx context.Context, text string, args []driver.NamedValue) (driver.Rows, error) {
	if err := c.faults.fails(text); err != nil {
		return nil, err
	}
	rows, err := c.Conn.(driver.QueryerContext).QueryContext(ctx, text, args)
	if err != nil {
		return nil, err
	}
	return &faultyRows{Rows: rows, text: text, faults: c.faults}, nil
}

type faultyTx struct {
	driver.Tx

	faults *stepFaults
}

func (tx faultyTx) Commit() error {
	if err := tx.faults.fails("COMMIT"); err != nil {
		return errors.Join(err, tx.Rollback())
	}
	return tx.Tx.Commit()
}

type faultyResult struct {
	driver.Result

	text   string
	faults *stepFaults
}

func (r faultyResult) RowsAffected() (int64, error) {
	if err := r.faults.fails("the number of affected rows of " + r.text); err != nil {
		return 0, err
	}
	return r.Result.RowsAffected()
}

// faultyRows can fail when its first row is read.
type faultyRows struct {
	driver.Rows

	text   string
	read   bool
	faults *stepFaults
}

func (r *faultyRows) Next(into []driver.Value) error {
	if !r.read {
		r.read = true
		if err := r.faults.fails("the rows of " + r.text); err != nil {
			return err
		}
	}
	return r.Rows.Next(into)
}
