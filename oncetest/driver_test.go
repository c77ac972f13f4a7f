package oncetest_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/internal/testkit"
)

// bare is a driver for SQLite that has none of the optional interfaces.
type bare struct {
	driver   driver.Driver
	dsn      string
	skipping bool // connections have ExecContext and QueryContext, which return driver.ErrSkip
}

func (b bare) Driver() driver.Driver { return b.driver }

func (b bare) Connect(context.Context) (driver.Conn, error) {
	conn, err := b.driver.Open(b.dsn)
	if b.skipping {
		return skippingConn{bareConn{conn}}, err
	}
	return bareConn{conn}, err
}

type skippingConn struct{ bareConn }

func (skippingConn) ExecContext(context.Context, string, []driver.NamedValue) (driver.Result, error) {
	return nil, driver.ErrSkip
}

func (skippingConn) QueryContext(context.Context, string, []driver.NamedValue) (driver.Rows, error) {
	return nil, driver.ErrSkip
}

type bareConn struct{ driver.Conn }

func (c bareConn) Prepare(query string) (driver.Stmt, error) {
	stmt, err := c.Conn.Prepare(query)
	return bareStmt{stmt}, err
}

type bareStmt struct{ driver.Stmt }

func TestDriverWithoutOptionalInterfaces(t *testing.T) {
	t.Parallel()
	for name, skipping := range map[string]bool{"bare": false, "skipping": true} {
		t.Run(name, func(t *testing.T) {
			db := testkit.SQLite(t)
			pool := sql.OpenDB(bare{db.Driver(), db.DSN, skipping})
			t.Cleanup(func() { _ = pool.Close() })
			db.DB = pool
			s := newShop(t, db)
			examine(t, s.examined(pay)).mustPass(subtests(2))

			r := examine(t, s.examined(func(ctx context.Context, tx *sql.Tx, msg *message.Message) ([]*message.Message, error) {
				_, _ = pay(ctx, tx, msg)
				return nil, nil
			}))
			r.mustFail("statement 2 of message 1 fails", "table payments has 1 row where one delivery gives 2", "although a statement failed")
		})
	}
}
