package pgxoutbox

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/outbox"
	"github.com/watermill-once/once/outbox/pgxoutbox"
)

// firsts contains functions that run the first statement of a transaction. Each returns the results
// of the statement as text.
var firsts = map[string]func(ctx context.Context, tx pgx.Tx) (string, error){
	"exec": func(ctx context.Context, tx pgx.Tx) (string, error) {
		tag, err := tx.Exec(ctx, `INSERT INTO orders (id) VALUES ($1), ($2)`, "first", "second")
		return tag.String(), err
	},
	"exec without arguments": func(ctx context.Context, tx pgx.Tx) (string, error) {
		tag, err := tx.Exec(ctx, `INSERT INTO orders (id) VALUES ('first')`)
		return tag.String(), err
	},
	"several statements": func(ctx context.Context, tx pgx.Tx) (string, error) {
		tag, err := tx.Exec(ctx, `INSERT INTO orders (id) VALUES ('first'); DELETE FROM orders`)
		return tag.String(), err
	},
	"named arguments": func(ctx context.Context, tx pgx.Tx) (string, error) {
		tag, err := tx.Exec(ctx, `INSERT INTO orders (id) VALUES (@id)`, pgx.NamedArgs{"id": "first"})
		return tag.String(), err
	},
	"option of pgx": func(ctx context.Context, tx pgx.Tx) (string, error) {
		tag, err := tx.Exec(ctx, `INSERT INTO orders (id) VALUES ($1)`, pgx.QueryExecModeExec, "first")
		return tag.String(), err
	},
	"isolation": func(ctx context.Context, tx pgx.Tx) (level string, err error) {
		if _, err = tx.Exec(ctx, `SET TRANSACTION ISOLATION LEVEL SERIALIZABLE`); err == nil {
			err = tx.QueryRow(ctx, `SHOW transaction_isolation`).Scan(&level)
		}
		return level, err
	},
	"returning": func(ctx context.Context, tx pgx.Tx) (id string, err error) {
		err = tx.QueryRow(ctx, `INSERT INTO orders (id) VALUES ($1) RETURNING id`, "first").Scan(&id)
		return id, err
	},
	"no row": func(ctx context.Context, tx pgx.Tx) (id string, err error) {
		err = tx.QueryRow(ctx, `SELECT id FROM orders WHERE id = $1`, "none").Scan(&id)
		return fmt.Sprint(errors.Is(err, pgx.ErrNoRows)), nil
	},
	"row that cannot be scanned": func(ctx context.Context, tx pgx.Tx) (string, error) {
		var n int
		err := tx.QueryRow(ctx, `SELECT $1::text`, "text").Scan(&n)
		return fmt.Sprint(err), nil
	},
	"rows": func(ctx context.Context, tx pgx.Tx) (string, error) {
		rows, err := tx.Query(ctx, `SELECT n::text FROM generate_series(1, $1::int) AS n`, 3)
		if err != nil {
			return "", err
		}
		all, err := pgx.CollectRows(rows, pgx.RowTo[string])
		return fmt.Sprint(all, rows.CommandTag()), err
	},
	"rows that are not read": func(ctx context.Context, tx pgx.Tx) (string, error) {
		rows, err := tx.Query(ctx, `SELECT n::text FROM generate_series(1, $1::int) AS n`, 3)
		more := rows.Next()
		rows.Close()
		return fmt.Sprint(more, rows.Next(), rows.Err(), rows.CommandTag()), err
	},
	"rows that cannot be scanned": func(ctx context.Context, tx pgx.Tx) (string, error) {
		rows, err := tx.Query(ctx, `SELECT $1::text`, "text")
		if err != nil {
			return "", err
		}
		var n int
		for rows.Next() {
			err = rows.Scan(&n)
		}
		return fmt.Sprint(err, rows.Err()), nil
	},
	"rows that fail": func(ctx context.Context, tx pgx.Tx) (string, error) {
		rows, _ := tx.Query(ctx, `SELECT 1 / (n - $1::int) FROM generate_series(1, 3) AS n`, 2)
		for rows.Next() {
			_ = rows.Scan(new(int))
		}
		return "", rows.Err()
	},
	"syntax error": func(ctx context.Context, tx pgx.Tx) (string, error) {
		tag, err := tx.Exec(ctx, `INSERT INTO none VALUES ($1)`, "first")
		return tag.String(), err
	},
	"syntax error without arguments": func(ctx context.Context, tx pgx.Tx) (string, error) {
		tag, err := tx.Exec(ctx, `nonsense`)
		return tag.String(), err
	},
	"row with a syntax error": func(ctx context.Context, tx pgx.Tx) (string, error) {
		return "", tx.QueryRow(ctx, `nonsense $1`, 1).Scan(new(int))
	},
	"constraint": func(ctx context.Context, tx pgx.Tx) (string, error) {
		tag, err := tx.Exec(ctx, `INSERT INTO orders (id) VALUES ($1), ($1)`, "first")
		return tag.String(), err
	},
	"bad argument": func(ctx context.Context, tx pgx.Tx) (string, error) {
		_, err := tx.Exec(ctx, `INSERT INTO orders (id) VALUES ($1)`, struct{}{})
		return fmt.Sprint(err != nil), nil // in the simple protocol it is an error of pgx as well
	},
	"ended context": func(ctx context.Context, tx pgx.Tx) (string, error) {
		ended, cancel := context.WithCancel(ctx)
		cancel()
		_, err := tx.Exec(ended, `INSERT INTO orders (id) VALUES ($1)`, "first")
		return fmt.Sprint(errors.Is(err, context.Canceled)), nil
	},
	"timeout": func(ctx context.Context, tx pgx.Tx) (string, error) {
		short, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
		defer cancel()
		_, err := tx.Exec(short, `SELECT pg_sleep($1)`, 30)
		return fmt.Sprint(err != nil), nil
	},
	"batch": func(ctx context.Context, tx pgx.Tx) (string, error) {
		batch := &pgx.Batch{}
		batch.Queue(`INSERT INTO orders (id) VALUES ($1)`, "first")
		return "", tx.SendBatch(ctx, batch).Close()
	},
	"copy": func(ctx context.Context, tx pgx.Tx) (string, error) {
		n, err := tx.CopyFrom(ctx, pgx.Identifier{"orders"}, []string{"id"}, pgx.CopyFromRows([][]any{{"first"}}))
		return fmt.Sprint(n), err
	},
	"prepare": func(ctx context.Context, tx pgx.Tx) (string, error) {
		if _, err := tx.Prepare(ctx, "named", `INSERT INTO orders (id) VALUES ($1)`); err != nil {
			return "", err
		}
		tag, err := tx.Exec(ctx, "named", "first")
		return tag.String(), err
	},
	"savepoint": func(ctx context.Context, tx pgx.Tx) (string, error) {
		err := pgx.BeginFunc(ctx, tx, func(tx pgx.Tx) error {
			_, err := tx.Exec(ctx, `INSERT INTO orders (id) VALUES ($1)`, "undone")
			return errors.Join(err, errWork)
		})
		return fmt.Sprint(errors.Is(err, errWork)), nil
	},
	"connection": func(ctx context.Context, tx pgx.Tx) (string, error) {
		tag, err := tx.Conn().Exec(ctx, `INSERT INTO orders (id) VALUES ($1)`, "first")
		return tag.String(), err
	},
	"large object": func(ctx context.Context, tx pgx.Tx) (string, error) {
		large := tx.LargeObjects()
		_, err := large.Create(ctx, 0)
		return "", err
	},
	"nothing": func(context.Context, pgx.Tx) (string, error) { return "", nil },
}

// InTx sends BEGIN together with the first statement. The results of statements, the errors and the
// committed rows are the same as in a transaction of pgx, even if the service's function ignores an
// error.
func TestFirstStatementIsTheSameAsInATransactionOfPgx(t *testing.T) {
	for _, mode := range []pgx.QueryExecMode{
		pgx.QueryExecModeCacheStatement, pgx.QueryExecModeCacheDescribe, pgx.QueryExecModeDescribeExec,
		pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol,
	} {
		t.Run(mode.String(), func(t *testing.T) {
			b := newBench(t, func(c *pgxpool.Config) { c.ConnConfig.DefaultQueryExecMode = mode })
			ctx := t.Context()
			for name, first := range firsts {
				seen := func(begin func(work func(tx pgx.Tx) error) error) string {
					var text string
					err := begin(func(tx pgx.Tx) error {
						saw, err := first(ctx, tx)
						text = saw + described(err)
						_, err = tx.Exec(ctx, `INSERT INTO orders (id) VALUES ($1)`, "later")
						text += described(err)
						return nil
					})
					text += fmt.Sprint(" committed: ", err == nil, " orders: ", b.text(`SELECT id FROM orders ORDER BY id`))
					b.Exec(`DELETE FROM orders`)
					return text
				}
				want := seen(func(work func(tx pgx.Tx) error) error { return pgx.BeginFunc(ctx, b.pool, work) })
				got := seen(func(work func(tx pgx.Tx) error) error {
					return b.inTx(func(tx pgx.Tx, _ message.Publisher) error { return work(tx) })
				})
				if got != want {
					t.Errorf("%s:\n%s\npgx:\n%s", name, got, want)
				}
			}
		})
	}
}

// described returns the text of an error, without the words that pgx adds in a batch.
func described(err error) string {
	var refused *pgconn.PgError
	switch {
	case err == nil:
		return ""
	case errors.As(err, &refused):
		return " " + refused.Error()
	case strings.Contains(err.Error(), "conn closed"):
		return " conn closed"
	}
	return " " + err.Error()
}

// The connections of the pool are dead, which pgx notices at the first statement. By then the
// transaction has done nothing, so it begins on another connection.
func TestTransactionBeginsOnAnotherConnection(t *testing.T) {
	b := newBench(t, nil)
	for _, name := range []string{
		"exec", "exec without arguments", "returning", "rows", "batch", "copy", "prepare", "savepoint", "connection", "large object", "nothing",
	} {
		b.openAll()
		b.Exec(`SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND datname = current_database()`)
		err := b.inTx(func(tx pgx.Tx, events message.Publisher) error {
			_, err := firsts[name](t.Context(), tx)
			return errors.Join(err, events.Publish("orders.placed", event("e")))
		})
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if got := b.text(`SELECT message_id FROM once_outbox`); got != "e" {
			t.Errorf("%s: events %q", name, got)
		}
		b.Exec(`DELETE FROM orders; DELETE FROM once_outbox`)
	}
}

// openAll opens all connections of the pool.
func (b *bench) openAll() {
	b.Helper()
	for range b.pool.Config().MaxConns {
		conn, err := b.pool.Acquire(b.Context())
		kit.OK(b, err)
		defer conn.Release()
	}
}

// If no connection can be opened any more, InTx returns an error and commits nothing. If a method
// of pgx.Tx cannot return this error, for example LargeObjects, it ends the function that InTx
// runs.
func TestTransactionThatCannotBegin(t *testing.T) {
	b := newBench(t, nil)
	for name, use := range map[string]func(tx pgx.Tx) error{
		"exec": func(tx pgx.Tx) error {
			_, err := tx.Exec(t.Context(), `INSERT INTO orders (id) VALUES ($1)`, "a")
			return err
		},
		"query": func(tx pgx.Tx) error {
			rows, err := tx.Query(t.Context(), `SELECT $1::text`, "a")
			rows.Close()
			return err
		},
		"connection":   func(tx pgx.Tx) error { return tx.Conn().Ping(t.Context()) },
		"large object": func(tx pgx.Tx) error { tx.LargeObjects(); return nil },
	} {
		b.openAll()
		err := b.inTx(func(tx pgx.Tx, events message.Publisher) error {
			b.stopDialing.Store(true)
			defer b.stopDialing.Store(false)
			b.Exec(`SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND datname = current_database()`)
			_ = events.Publish("orders.placed", event("lost"))
			_ = use(tx) // work ignores the error
			return nil
		})
		if err == nil || errors.Is(err, outbox.ErrCommitUnknown) || !strings.HasPrefix(err.Error(), "pgxoutbox: ") {
			t.Errorf("%s: %v", name, err)
		}
		b.expect("", "")
	}
}

// A tracer of the service sees each statement separately.
func TestTracerSeesEveryStatement(t *testing.T) {
	traced := &tracer{}
	b := newBench(t, func(c *pgxpool.Config) { c.ConnConfig.Tracer = traced })
	// The first transaction of a pool also finds the tables.
	kit.OK(t, b.inTx(func(pgx.Tx, message.Publisher) error { return nil }))
	traced.queries = nil
	kit.OK(t, b.inTx(func(tx pgx.Tx, _ message.Publisher) error {
		_, err := firsts["exec"](t.Context(), tx)
		return err
	}))
	const want = `begin INSERT INTO orders (id) VALUES ($1), ($2)`
	if got := strings.Join(traced.queries, " "); got != want {
		t.Errorf("traced %q, want %q", got, want)
	}
}

type tracer struct{ queries []string }

func (tr *tracer) TraceQueryStart(ctx context.Context, _ *pgx.Conn, data pgx.TraceQueryStartData) context.Context {
	tr.queries = append(tr.queries, data.SQL)
	return ctx
}

func (*tracer) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// Trap 27. InTx closes a connection whose server has become a replica. Otherwise the pool would use it
// again, and every write would fail.
func TestInTxLeavesAReplica(t *testing.T) {
	for name, work := range map[string]func(tx pgx.Tx, events message.Publisher) error{
		"statement of the service": func(tx pgx.Tx, _ message.Publisher) error {
			_, err := tx.Exec(t.Context(), `INSERT INTO orders (id) VALUES ('one')`)
			return err
		},
		"event": func(_ pgx.Tx, events message.Publisher) error {
			return events.Publish("orders", message.NewMessage("one", nil))
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, func(c *pgxpool.Config) { c.MaxConns = 1 })
			_, err := b.pool.Exec(t.Context(), `SET SESSION CHARACTERISTICS AS TRANSACTION READ ONLY`) // like a replica
			kit.OK(t, err)
			if err := pgxoutbox.InTx(t.Context(), b.pool, work); err == nil || !strings.Contains(err.Error(), "read-only") {
				t.Fatalf("got %v, want the error of a write on a replica", err)
			}
			kit.OK(t, pgxoutbox.InTx(t.Context(), b.pool, work))
		})
	}
}
