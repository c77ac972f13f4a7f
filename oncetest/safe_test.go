package oncetest_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once"
	"github.com/watermill-once/once/dedup"
	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/oncetest"
)

// statements is the number of statements that run before the handler: only the insert
// into the inbox.
const statements = 1

// subtests returns how many subtests run for two messages. handlers is
// the number of statements that the handler executes.
func subtests(handlers int) int {
	return 2 + 2*(2*(statements+handlers)+2) + 1
}

func TestSafeHandlerPasses(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, s shop) {
		oncetest.Run(t, s.examined(pay))
		examine(t, s.examined(pay)).mustPass(subtests(2))
	})
}

// The test passes for a handler that reads rows and produces messages. It compares the
// produced messages, too. It also injects faults into queries.
func TestSafeHandlerThatReadsAndProducesPasses(t *testing.T) {
	kit.Long(t)
	t.Parallel()
	each(t, func(t *testing.T, s shop) {
		examine(t, s.examined(func(ctx context.Context, tx *sql.Tx, msg *message.Message) ([]*message.Message, error) {
			var sum int
			if err := tx.QueryRowContext(ctx, `SELECT sum FROM totals WHERE name = 'all'`).Scan(&sum); err != nil {
				return nil, err
			}
			stmt, err := tx.PrepareContext(ctx, `INSERT INTO payments (order_id, amount) VALUES ($1, $2)`)
			if err != nil {
				return nil, err
			}
			defer stmt.Close()
			if _, err := stmt.ExecContext(ctx, string(msg.Payload), sum); err != nil {
				return nil, err
			}
			msg.Payload[0] = 'O' // must change only this call's copy of the payload
			return []*message.Message{once.To("captured", message.NewMessage(msg.UUID+"-captured", msg.Payload))}, nil
		})).mustPass(subtests(3))
	})
}

// The test passes for a handler that sometimes fails or panics, because its message is
// delivered again until the handler succeeds.
func TestSafeHandlerThatSometimesFailsPasses(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, s shop) {
		calls := 0
		examine(t, s.examined(func(ctx context.Context, tx *sql.Tx, msg *message.Message) ([]*message.Message, error) {
			calls++
			switch calls % 7 {
			case 3:
				return nil, errors.New("the gateway is away")
			case 5:
				panic("nil map")
			}
			return pay(ctx, tx, msg)
		})).mustPass(subtests(2))
	})
}

func TestHandlerWithTxFromContextPasses(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, s shop) {
		handle := func(msg *message.Message) error {
			tx, _ := dedup.TxFromContext(msg.Context())
			_, err := pay(msg.Context(), tx, msg)
			return err
		}
		examine(t, s.examined(func(_ context.Context, _ *sql.Tx, msg *message.Message) ([]*message.Message, error) {
			return nil, handle(msg)
		})).mustPass(subtests(2))
	})
}

// The handler of an idempotent consumer runs for every delivery.
func TestIdempotentHandlerRunsForDuplicates(t *testing.T) {
	kit.Long(t)
	t.Parallel()
	each(t, func(t *testing.T, s shop) {
		config := s.examined(func(ctx context.Context, tx *sql.Tx, msg *message.Message) ([]*message.Message, error) {
			_, err := tx.ExecContext(ctx, `
				INSERT INTO totals (name, sum, last) VALUES ($1, 1, '') ON CONFLICT (name) DO NOTHING`, string(msg.Payload))
			return nil, err
		})
		config.Dedup.Consumer, config.Dedup.Idempotent = "search", []string{"search"}
		want := subtests(1) // the insert into the inbox is missing, but a statement that sets timeouts is added
		if s.Dialect == "sqlite" {
			want = subtests(0)
		}
		examine(t, config).mustPass(want)

		config.Handler = pay
		r := examine(t, config)
		r.mustFail("twice in a row", "delivered twice in a row: table payments has 4 rows where one delivery gives 2: ",
			`(amount=5 order_id="order-1") is too many`)
		r.mustFail("twice at once", "delivered twice at once: table payments has 4 rows where one delivery gives 2")
		r.mustFail("lost after the commit of message 2",
			`connection lost after the commit of message "m2", before the reply, then delivered again: table payments has 3 rows`)
	})
}

// Ignored columns may have different values in each run.
func TestIgnoredColumnsAreNotCompared(t *testing.T) {
	kit.Long(t)
	t.Parallel()
	each(t, func(t *testing.T, s shop) {
		n := 0
		config := s.examined(func(ctx context.Context, tx *sql.Tx, msg *message.Message) ([]*message.Message, error) {
			n++
			_, err := tx.ExecContext(ctx, `INSERT INTO payments (order_id, amount) VALUES ($1, $2)`, string(msg.Payload), n)
			return nil, err
		})
		examine(t, config).mustFail("", "delivered once, and a second time on the same state: table payments has amount=3 "+
			`where the first time gave 1, in (amount=3 order_id="order-1")`, "Config.Ignore", "not on memory or chance")
		for _, ignore := range [][]string{{"amount"}, {"payments.amount"}, {"amount", "order_id"}} {
			config.Ignore = ignore
			examine(t, config).mustPass(subtests(1))
		}
		config.Ignore = []string{"amount", "audit.amount", "nonsense"}
		examine(t, config).mustFail("", "Ignore: there is no column audit.amount, no column nonsense")
	})
}

// A handler may cache the rows that it has read. A later transaction then has fewer
// statements, and the test passes.
func TestHandlerThatCachesPasses(t *testing.T) {
	t.Parallel()
	s := newShop(t, kit.SQLite(t))
	calls := 0
	r := examine(t, s.examined(func(ctx context.Context, tx *sql.Tx, msg *message.Message) ([]*message.Message, error) {
		if calls++; calls <= 4 { // the first four calls are the two reference runs
			if _, err := tx.ExecContext(ctx, `SELECT 1`); err != nil {
				return nil, err
			}
		}
		return pay(ctx, tx, msg)
	}))
	r.mustPass(subtests(3))
	if sub := r.subs["lost at statement 4 of message 1"]; !sub.skipped || !strings.Contains(sub.said, "fewer statements") {
		t.Errorf("%+v", sub)
	}
}

// If oncetest injects the loss of a connection, it closes the connection. So the
// session of the database ends, and its locks are released.
func TestLostConnectionIsClosed(t *testing.T) {
	t.Parallel()
	s := newShop(t, kit.Postgres(t))
	calls, lost := 0, 0
	previous := -1
	config := s.examined(func(ctx context.Context, tx *sql.Tx, msg *message.Message) ([]*message.Message, error) {
		calls++
		var pid int
		if err := tx.QueryRowContext(ctx, `SELECT pg_backend_pid()`).Scan(&pid); err != nil {
			return nil, err
		}
		_, err := pay(ctx, tx, msg)
		if errors.Is(err, driver.ErrBadConn) {
			lost, previous = lost+1, pid
		} else if pid == previous {
			t.Errorf("call %d has the connection that was lost", calls)
		}
		return nil, err
	})
	examine(t, config).mustPass(subtests(3))
	if lost != 2*2 {
		t.Errorf("%d connections were lost under the handler", lost)
	}
}

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
			db := kit.SQLite(t)
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
