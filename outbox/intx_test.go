package outbox_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"

	wsql "github.com/ThreeDotsLabs/watermill-sql/v3/pkg/sql"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/lib/pq"

	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/outbox"
	"github.com/watermill-once/once/outbox/lazytx"
	"github.com/watermill-once/once/schema"
)

func TestRolledBackTransactionStoresNothing(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, db *sql.DB, config schema.Config) {
		o := newOutbox(t, config)
		failed := errors.New("business says no")
		hinted := false
		err := o.InTx(t.Context(), db, func(_ *sql.Tx, events message.Publisher) error {
			kit.OK(t, events.Publish("t", message.NewMessage("id", nil)))
			return failed
		}, func() { hinted = true })
		if !reflect.DeepEqual(err, failed) {
			t.Fatalf("err is %v, want %v: the caller's error, as it is", err, failed)
		}
		if hinted {
			t.Fatal("hinted is true")
		}
		if got := rows(t, db, config); len(got) != 0 {
			t.Fatalf("rows(config) are %+v, want none", got)
		}
	})
}

// Trap 58. A panic in a transaction must roll it back.
func TestPanicRollsBackAndPropagates(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, db *sql.DB, config schema.Config) {
		o := newOutbox(t, config)
		panicked := func() (value any) {
			defer func() { value = recover() }()
			return o.InTx(t.Context(), db, func(_ *sql.Tx, events message.Publisher) error {
				kit.OK(t, events.Publish("t", message.NewMessage("id", nil)))
				panic("boom")
			})
		}()
		if panicked != "boom" {
			t.Fatalf(`InTx panics with %v, want "boom"`, panicked)
		}
		if got := rows(t, db, config); len(got) != 0 {
			t.Fatalf("rows(config) are %+v, want none", got)
		}
		if err := publish(t, db, o, "t", message.NewMessage("id", nil)); err != nil {
			t.Fatalf("%v: the connection is free again", err)
		}
	})
}

// If the forwarder runs in another process, its hint is nil here. InTx skips a nil
// hint, because calling it would panic after the commit.
func TestNilHintIsSkipped(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, db *sql.DB, config schema.Config) {
		hinted := false
		kit.OK(t, newOutbox(t, config).InTx(t.Context(), db, func(*sql.Tx, message.Publisher) error { return nil },
			nil, func() { hinted = true }))
		if !hinted {
			t.Fatal("hinted is false")
		}
	})
}

func TestHintsAreCalledAfterTheCommit(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, db *sql.DB, config schema.Config) {
		visible := 0
		kit.OK(t, newOutbox(t, config).InTx(t.Context(), db, func(_ *sql.Tx, events message.Publisher) error {
			return events.Publish("t", message.NewMessage("id", nil))
		}, func() { visible = len(rows(t, db, config)) }))
		if visible != 1 {
			t.Fatalf("visible is %d, want 1", visible)
		}
	})
}

func TestContextOfInTx(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, db *sql.DB, config schema.Config) {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		err := newOutbox(t, config).InTx(ctx, db, func(*sql.Tx, message.Publisher) error {
			t.Error("ran without a connection")
			return nil
		})
		if !errors.Is(err, context.Canceled) {
			t.Fatalf("got %v, want context.Canceled", err)
		}
		if err == nil || !strings.Contains(err.Error(), "outbox: ") {
			t.Fatalf(`got %v, want an error with "outbox: "`, err)
		}
	})
}

func TestPublisherFailsAfterItsTransaction(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, db *sql.DB, config schema.Config) {
		var events message.Publisher
		kit.OK(t, newOutbox(t, config).InTx(t.Context(), db, func(_ *sql.Tx, inside message.Publisher) error {
			events = inside
			return nil
		}))
		if err := events.Publish("t", message.NewMessage("id", nil)); !errors.Is(err, sql.ErrTxDone) {
			t.Fatalf("Publish: got %v, want sql.ErrTxDone", err)
		}
		kit.OK(t, events.Close())
	})
}

// Trap 33. One statement accepts a limited number of parameters, but a call of Publish
// may have any number of messages.
func TestPublishStoresAnyNumberOfMessages(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, db *sql.DB, config schema.Config) {
		o := newOutbox(t, config)
		if err := publish(t, db, o, "t"); err != nil {
			t.Fatalf("%v: no message", err)
		}
		if err := publish(t, db, o, ""); err != nil {
			t.Fatalf("%v: no message, so nothing can be wrong with one", err)
		}

		many := 30_000 // one statement accepts 65,535 parameters in PostgreSQL, and 32,766 in SQLite
		if config.Dialect == schema.SQLite {
			many = 7_000
		}
		msgs := make([]*message.Message, many)
		for i := range msgs {
			msgs[i] = &message.Message{UUID: fmt.Sprint(i)} // its metadata is nil
		}
		kit.OK(t, publish(t, db, o, "t", msgs...))
		for i, r := range rows(t, db, config) {
			if want := fmt.Sprint(i); r.id != want {
				t.Fatalf("r.id is %q, want %q", r.id, want)
			}
		}

		err := o.InTx(t.Context(), db, func(_ *sql.Tx, events message.Publisher) error {
			kit.OK(t, events.Publish("t", msgs...))
			return errors.New("all of them are in one transaction")
		})
		if err == nil {
			t.Fatal("got no error")
		}
		if got := rows(t, db, config); len(got) != many {
			t.Fatalf("%d rows, want %d: %+v", len(got), many, got)
		}
	})
}

func TestSchemaAdapterForWatermillSQLsPublisher(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, db *sql.DB, config schema.Config) {
		o := newOutbox(t, config)
		adapter := o.SchemaAdapter()
		tx := kit.Begin(t, db)
		defer func() { _ = tx.Rollback() }()
		pub, err := wsql.NewPublisher(tx, wsql.PublisherConfig{SchemaAdapter: adapter}, nil)
		kit.OK(t, err)

		kit.OK(t, pub.Publish("orders.placed", message.NewMessage("1", []byte("a")), message.NewMessage("2", nil)))
		if err := pub.Publish("payments"); err != nil {
			t.Fatalf("%v: no message", err)
		}
		if err := pub.Publish("payments", message.NewMessage("", nil)); !errors.Is(err, outbox.ErrInvalid) {
			t.Fatalf("Publish: got %v, want ErrInvalid", err)
		}
		many := make([]*message.Message, 2000)
		for i := range many {
			many[i] = message.NewMessage(fmt.Sprint(i), nil)
		}
		if err := pub.Publish("payments", many...); err == nil || !strings.Contains(err.Error(), "outbox.Publisher") {
			t.Fatalf(`Publish: got %v, want an error with "outbox.Publisher"`, err)
		}
		kit.OK(t, tx.Commit())

		all := rows(t, db, config)
		if len(all) != 2 {
			t.Fatalf("len(all) is %d, want 2: %+v", len(all), all)
		}
		if all[0].topic != "orders.placed" {
			t.Fatalf(`all[0].topic is %q, want "orders.placed"`, all[0].topic)
		}

		if _, err := db.Exec(adapter.SelectQuery("t", "g", nil).Query); err == nil || !strings.Contains(err.Error(), "read by the forwarder") {
			t.Fatalf(`Exec: got %v, want an error with "read by the forwarder"`, err)
		}
		if _, err := adapter.UnmarshalMessage(nil); err == nil || !strings.Contains(err.Error(), "read by the forwarder") {
			t.Fatalf(`UnmarshalMessage: got %v, want an error with "read by the forwarder"`, err)
		}
		if got := adapter.SchemaInitializingQueries("t"); len(got) != 0 {
			t.Fatalf(`adapter.SchemaInitializingQueries("t") are %v, want none`, got)
		}
	})
}

func TestPackageFunctions(t *testing.T) {
	t.Parallel()
	db := postgres(t)
	kit.OK(t, outbox.InTx(t.Context(), db, func(tx *sql.Tx, events message.Publisher) error {
		return errors.Join(
			events.Publish("t", message.NewMessage("1", nil)),
			outbox.Publisher(tx).Publish("t", message.NewMessage("2", nil)),
		)
	}))
	if got := rows(t, db, schema.Config{}); len(got) != 2 {
		t.Fatalf("%d rows, want 2: %+v", len(got), got)
	}
}

func TestSchemaAndPrefix(t *testing.T) {
	t.Parallel()
	db := postgres(t)
	config := schema.Config{Schema: "sales", Prefix: "evt_"}
	kit.OK(t, schema.Up(t.Context(), db, config))
	kit.OK(t, publish(t, db, newOutbox(t, config), "t", message.NewMessage("1", nil)))
	var n int
	kit.OK(t, db.QueryRow(`SELECT COUNT(*) FROM sales.evt_outbox`).Scan(&n))
	if n != 1 {
		t.Fatalf("n is %d, want 1", n)
	}
}

// Trap 04. If the connection is lost during the commit, InTx returns ErrCommitUnknown
// and calls the hint.
func TestLostConnectionAtCommitIsUnknown(t *testing.T) {
	t.Parallel()
	db := postgres(t)
	hinted := false
	err := outbox.InTx(t.Context(), db, func(tx *sql.Tx, events message.Publisher) error {
		kit.OK(t, events.Publish("t", message.NewMessage("id", nil)))
		var pid int
		kit.OK(t, tx.QueryRow("SELECT pg_backend_pid()").Scan(&pid))
		_, err := db.Exec("SELECT pg_terminate_backend($1, 5000)", pid)
		return err
	}, func() { hinted = true })
	if !errors.Is(err, outbox.ErrCommitUnknown) {
		t.Fatalf("got %v, want ErrCommitUnknown", err)
	}
	if !hinted {
		t.Fatal("hinted is false: it may have committed")
	}
}

// eachDriver runs a test with each driver for PostgreSQL, alone and with package lazytx,
// and with SQLite.
func eachDriver(t *testing.T, test func(t *testing.T, db *sql.DB, config schema.Config)) {
	t.Helper()
	database := kit.Postgres(t)
	pqConnector, err := pq.NewConnector(database.DSN)
	kit.OK(t, err)
	pgxConfig, err := pgx.ParseConfig(database.DSN)
	kit.OK(t, err)
	pgxConnector := stdlib.GetConnector(*pgxConfig)
	for name, db := range map[string]*sql.DB{
		"pq": sql.OpenDB(pqConnector), "pq with lazytx": sql.OpenDB(lazytx.Connector(pqConnector)),
		"pgx": sql.OpenDB(pgxConnector), "pgx with lazytx": sql.OpenDB(lazytx.Connector(pgxConnector)),
	} {
		t.Run(name, func(t *testing.T) {
			t.Cleanup(func() { _ = db.Close() })
			kit.Exec(t, db, `DELETE FROM once_outbox`)
			test(t, db, schema.Config{})
		})
	}
	t.Run("sqlite", func(t *testing.T) {
		db, config := kit.SQLite(t), schema.Config{Dialect: schema.SQLite}
		kit.OK(t, schema.Up(t.Context(), db.DB, config))
		test(t, db.DB, config)
	})
}

// Trap 90. A function that ends its transaction gets an error from InTx. No event is
// committed without the writes before it.
func TestFunctionThatEndsItsTransactionIsRefused(t *testing.T) {
	t.Parallel()
	eachDriver(t, func(t *testing.T, db *sql.DB, config schema.Config) {
		o := newOutbox(t, config)
		ctx := context.WithoutCancel(t.Context())
		for _, c := range []struct {
			end      string
			first    bool // publish before the end, not after it
			swallow  bool // ignore the error of Publish
			expected int  // events
		}{
			{`ROLLBACK`, false, false, 0},
			{`ROLLBACK`, false, true, 0},
			{` /* back */ rollback;`, false, true, 0},
			{`ROLLBACK`, true, false, 0},
			{`COMMIT`, false, true, 0},
			{`COMMIT`, true, false, 1},
			{`ROLLBACK; BEGIN`, false, false, 0},
			{`ROLLBACK AND CHAIN`, false, false, 0},
			{`COMMIT; BEGIN`, false, false, 0},
		} {
			if config.Dialect == schema.SQLite && strings.Contains(c.end, "CHAIN") {
				continue // SQLite does not have this statement
			}
			err := o.InTx(ctx, db, func(tx *sql.Tx, events message.Publisher) error {
				publish := func() error {
					if err := events.Publish("t", message.NewMessage("id", nil)); err != nil && !c.swallow {
						return err
					}
					return nil
				}
				if c.first {
					if err := publish(); err != nil {
						return err
					}
				}
				if _, err := tx.ExecContext(ctx, c.end); err != nil {
					return err
				}
				if c.first {
					return nil
				}
				return publish()
			})
			if err == nil || !strings.Contains(err.Error(), "the transaction was ended by a statement") {
				t.Errorf("%+v: got %v", c, err)
			}
			if got := rows(t, db, config); len(got) != c.expected {
				t.Errorf("%+v: %d events, want %d", c, len(got), c.expected)
			}
			kit.OK(t, kit.Err(db.ExecContext(ctx, `DELETE FROM once_outbox`)))
			if err := publish(t, db, o, "t"); err != nil { // the pool has only usable connections
				t.Error(err)
			}
		}
	})
}

// Savepoints, settings and statements that only look like an end of the transaction are
// allowed.
func TestFunctionThatKeepsItsTransactionIsNotRefused(t *testing.T) {
	t.Parallel()
	eachDriver(t, func(t *testing.T, db *sql.DB, config schema.Config) {
		o := newOutbox(t, config)
		ctx := context.WithoutCancel(t.Context())
		for _, statements := range [][]string{
			{`SAVEPOINT a`, `SELEC`, `ROLLBACK TO a`, `RELEASE a`},
			{`SAVEPOINT a`, `ROLLBACK TO SAVEPOINT a`},
			{`RESET ALL`},
			{`SET TRANSACTION ISOLATION LEVEL SERIALIZABLE`}, // fails after a query
			{`SAVEPOINT a`, `SET LOCAL lock_timeout = 1`, `RESET ALL`, `ROLLBACK TO a`},
			{`/* commit */ SELECT 1`, `SELECT 'ROLLBACK'`},
		} {
			if config.Dialect == schema.SQLite && len(statements) > 2 != (statements[0] == `SAVEPOINT a`) {
				continue // SQLite has no settings
			}
			err := o.InTx(ctx, db, func(tx *sql.Tx, events message.Publisher) error {
				for _, s := range statements {
					if _, err := tx.ExecContext(ctx, s); err != nil && s != `SELEC` && config.Dialect != schema.SQLite {
						return err
					}
				}
				return events.Publish("t", message.NewMessage("id", nil))
			})
			if err != nil {
				t.Errorf("%q: %v", statements, err)
			}
		}
	})
}

func TestMain(m *testing.M) { kit.MainWithTables(m) }

// eachDatabase runs test with each kind of database. The databases contain the tables of
// this library.
func eachDatabase(t *testing.T, test func(t *testing.T, db *sql.DB, config schema.Config)) {
	t.Helper()
	kit.EachDatabase(t, func(t *testing.T, db kit.Database) {
		config := kit.Tables(t, db)
		test(t, db.DB, config)
	})
}

// postgres returns a PostgreSQL database that contains the tables of this library.
func postgres(t testing.TB) *sql.DB {
	t.Helper()
	db := kit.Postgres(t).DB
	kit.OK(t, schema.Up(t.Context(), db, schema.Config{}))
	return db
}
