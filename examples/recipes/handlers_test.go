package recipes

import (
	"context"
	"database/sql"
	"errors"
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/uptrace/bun"
	"github.com/uptrace/bun/dialect/pgdialect"

	"github.com/watermill-once/once/dedup"
	"github.com/watermill-once/once/outbox"
	"github.com/watermill-once/once/outbox/lazytx"
)

type handler func(ctx context.Context, tx *sql.Tx, msg *message.Message) ([]*message.Message, error)

// consume calls a handler as a consumer does, after the inbox row was inserted.
func consume(t *testing.T, db *sql.DB, handle handler, msg *message.Message) error {
	t.Helper()
	inbox, err := dedup.New(db, dedup.Config{Consumer: "copies", Outbox: outbox.Publisher, SweptElsewhere: true})
	if err != nil {
		t.Fatal(err)
	}
	_, err = inbox.Middleware(func(msg *message.Message) ([]*message.Message, error) {
		tx, ok := dedup.TxFromContext(msg.Context())
		if !ok {
			return nil, errors.New("the handler has no transaction")
		}
		return handle(msg.Context(), tx, msg)
	})(msg)
	return err
}

func count(t *testing.T, db *sql.DB, table string) (n int) {
	t.Helper()
	if err := db.QueryRowContext(t.Context(), `SELECT COUNT(*) FROM `+table).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

// expect compares the number of rows of the tables of the order, the inbox and the outbox.
func expect(t *testing.T, db *sql.DB, orders, inbox, events int) {
	t.Helper()
	got := [3]int{count(t, db, "orders"), count(t, db, "once_inbox"), count(t, db, "once_outbox")}
	if want := [3]int{orders, inbox, events}; got != want {
		t.Errorf("the orders, the inbox and the outbox have %d rows, want %d", got, want)
	}
}

func orderEvent(t *testing.T, id string) *message.Message {
	t.Helper()
	msg, err := placed(Order{ID: id, Total: 1290})
	if err != nil {
		t.Fatal(err)
	}
	return msg
}

// pgxDatabases returns databases that are opened with pgx in the ways of the docs.
func pgxDatabases(t *testing.T) map[string]*sql.DB {
	t.Helper()
	opened := map[string]*sql.DB{"database/sql": open(t, "pgx", newDatabase(t))}
	for _, name := range []string{"pool", "pool and lazytx"} {
		pool, err := pgxpool.New(t.Context(), newDatabase(t))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(pool.Close)
		connector := stdlib.GetPoolConnector(pool)
		if name == "pool and lazytx" {
			connector = lazytx.Connector(connector)
		}
		db := sql.OpenDB(connector)
		t.Cleanup(func() {
			if err := db.Close(); err != nil {
				t.Error(err)
			}
		})
		opened[name] = db
	}
	return opened
}

func TestHandlersStoreTheOrderOnce(t *testing.T) {
	t.Parallel()
	handlers := map[string]func(db *sql.DB) handler{
		"sqlc": func(db *sql.DB) handler { return CopyWithSqlc(NewQueries(db)) },
		"bun":  func(db *sql.DB) handler { return CopyWithBun(bun.NewDB(db, pgdialect.New())) },
		"pgx":  func(*sql.DB) handler { return CopyWithPgx },
	}
	for name, db := range pgxDatabases(t) {
		rows := 0
		for library, handler := range handlers {
			handle := handler(db)
			msg := orderEvent(t, library)
			for range 2 {
				if err := consume(t, db, handle, msg); err != nil {
					t.Errorf("%s, %s: %v", name, library, err)
				}
			}
			rows++
			expect(t, db, rows, rows, 0)
		}
	}
}

// The pgx.Tx is the transaction of the handler: it sees the inbox row before the commit,
// and its writes are rolled back together with the inbox row.
func TestPgxTxIsTheTransactionOfTheHandler(t *testing.T) {
	t.Parallel()
	failure := errors.New("on purpose")
	for name, db := range pgxDatabases(t) {
		for _, result := range []error{failure, nil} {
			msg := orderEvent(t, "17")
			err := consume(t, db, func(ctx context.Context, tx *sql.Tx, msg *message.Message) ([]*message.Message, error) {
				pgxTx, err := PgxTx(ctx, tx)
				if err != nil {
					return nil, err
				}
				var mine, others string
				if err := tx.QueryRowContext(ctx, `SELECT pg_current_xact_id()`).Scan(&mine); err != nil {
					return nil, err
				}
				var inbox int
				const query = `SELECT pg_current_xact_id()::text, (SELECT COUNT(*) FROM once_inbox WHERE message_id = $1)`
				if err := pgxTx.QueryRow(ctx, query, msg.UUID).Scan(&others, &inbox); err != nil {
					return nil, err
				}
				if mine != others || inbox != 1 || count(t, db, "once_inbox") != 0 {
					t.Errorf("%s: the transaction is %s with %d inbox rows, want %s with 1", name, others, inbox, mine)
				}
				_, err = pgxTx.CopyFrom(ctx, pgx.Identifier{"orders"}, []string{"id", "total"}, pgx.CopyFromRows([][]any{{"17", 1290}}))
				return []*message.Message{placedCopy(t, msg)}, errors.Join(err, result)
			}, msg)
			if !errors.Is(err, result) {
				t.Fatalf("%s: the error is %v, want %v", name, err, result)
			}
			if result != nil {
				expect(t, db, 0, 0, 0)
			} else {
				expect(t, db, 1, 1, 1)
			}
		}
	}
}

func placedCopy(t *testing.T, msg *message.Message) *message.Message {
	t.Helper()
	produced := outbox.NewMessage(msg.Payload)
	outbox.SetTopic(produced, topic)
	return produced
}

// An event that is published between two statements of the pgx.Tx is rolled back with
// its savepoint.
func TestSavepointOfPgxTxContainsEvents(t *testing.T) {
	t.Parallel()
	for name, db := range pgxDatabases(t) {
		err := consume(t, db, func(ctx context.Context, tx *sql.Tx, _ *message.Message) ([]*message.Message, error) {
			if err := outbox.Publisher(tx).Publish(topic, orderEvent(t, "before")); err != nil {
				return nil, err
			}
			pgxTx, err := PgxTx(ctx, tx)
			if err != nil {
				return nil, err
			}
			savepoint, err := pgxTx.Begin(ctx)
			if err != nil {
				return nil, err
			}
			if err := outbox.Publisher(tx).Publish(topic, orderEvent(t, "inside")); err != nil {
				return nil, err
			}
			return nil, savepoint.Rollback(ctx)
		}, orderEvent(t, "17"))
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		expect(t, db, 0, 1, 1)
	}
}

// A handler that commits the pgx.Tx gets an error.
func TestCommitOfPgxTxIsReported(t *testing.T) {
	t.Parallel()
	for name, db := range pgxDatabases(t) {
		err := consume(t, db, func(ctx context.Context, tx *sql.Tx, _ *message.Message) ([]*message.Message, error) {
			pgxTx, err := PgxTx(ctx, tx)
			if err != nil {
				return nil, err
			}
			return nil, pgxTx.Commit(ctx)
		}, orderEvent(t, "17"))
		if err == nil || !strings.Contains(err.Error(), "transaction") {
			t.Errorf("%s: the error is %v, want one about the transaction", name, err)
		}
	}
}

func TestPgxTxNeedsPgx(t *testing.T) {
	t.Parallel()
	db := open(t, "postgres", newDatabase(t))
	err := consume(t, db, CopyWithPgx, orderEvent(t, "17"))
	if err == nil || !strings.Contains(err.Error(), "pgx/v5/stdlib") {
		t.Errorf("the error is %v, want one that names pgx/v5/stdlib", err)
	}
	expect(t, db, 0, 0, 0)
}
