package lazytx_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/lib/pq"

	"github.com/watermill-once/once/internal/dialect"
	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/outbox/lazytx"
	"github.com/watermill-once/once/schema"
)

func TestBeginIsSentWithFirstStatement(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	for n, end := range []func(tx *sql.Tx) error{(*sql.Tx).Commit, (*sql.Tx).Rollback} {
		tx, release := b.lazy()
		b.stateIs(idle)
		b.exec(tx, `SET LOCAL lock_timeout = 7; INSERT INTO effects VALUES (1)`)
		b.stateIs(inTransaction)
		if _, query := b.server(); !strings.HasPrefix(query, "BEGIN READ WRITE; SET LOCAL") {
			t.Fatalf("the first statement was %q", query)
		}
		b.exec(tx, `INSERT INTO effects VALUES ($1)`, 2+n)
		kit.OK(t, end(tx))
		release()
		b.stateIs(idle)
	}
	b.expect("0", "1", "2")
}

// The result of a statement contains only the rows of this statement, although other
// statements are sent with it. The inbox relies on this: the number of inserted rows
// tells it whether a message is new.
func TestResultBelongsToTheStatement(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	tx, _ := b.lazy()
	result, err := tx.ExecContext(t.Context(), `SET LOCAL lock_timeout = 7; INSERT INTO effects VALUES (1), (2), (3)`)
	kit.OK(t, err)
	if rows, err := result.RowsAffected(); err != nil || rows != 3 {
		t.Fatalf("%d rows, %v", rows, err)
	}
}

func TestIsolationLevelIsKept(t *testing.T) {
	kit.Long(t)
	t.Parallel()
	b := newBench(t)
	b.exec(b.others, `ALTER ROLE CURRENT_USER IN DATABASE `+b.name()+` SET default_transaction_isolation = 'serializable'`)
	b.db.SetMaxIdleConns(0) // a new connection uses the new default
	b.db.SetMaxIdleConns(1)
	b.effect(1)
	kit.OK(t, b.ours.Write(t.Context(), b.db, func(tx *sql.Tx) error {
		if _, query := b.server(); !strings.HasPrefix(query, "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE; SET LOCAL") {
			t.Errorf("the first statement was %q", query)
		}
		if isolation := isolationOf(t, tx); isolation != "read committed" {
			t.Errorf("a transaction of this module has isolation %s", isolation)
		}
		return nil
	}))
	tx, _ := b.lazy()
	b.exec(tx, `SET LOCAL lock_timeout = 7`)
	if isolation := isolationOf(t, tx); isolation != "serializable" {
		t.Fatalf("the transaction of a handler has isolation %s", isolation)
	}
}

func isolationOf(t *testing.T, tx *sql.Tx) (isolation string) {
	t.Helper()
	kit.OK(t, tx.QueryRowContext(t.Context(), `SHOW transaction_isolation`).Scan(&isolation))
	return isolation
}

func (b *bench) name() (name string) {
	b.Helper()
	kit.OK(b, b.others.QueryRowContext(b.Context(), `SELECT current_database()`).Scan(&name))
	return name
}

// If BEGIN cannot be sent together with the first statement, it is sent before this
// statement.
func TestEveryKindOfFirstStatementRunsInTheTransaction(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	for name, first := range map[string]func(tx *sql.Tx) error{
		"arguments": func(tx *sql.Tx) error {
			_, err := tx.ExecContext(t.Context(), `INSERT INTO effects VALUES ($1)`, 1)
			return err
		},
		"query": func(tx *sql.Tx) error {
			var one int
			return tx.QueryRowContext(t.Context(), `INSERT INTO effects VALUES (1) RETURNING 1`).Scan(&one)
		},
		"prepared": func(tx *sql.Tx) error {
			statement, err := tx.PrepareContext(t.Context(), `INSERT INTO effects VALUES (1)`)
			if err != nil {
				return err
			}
			defer statement.Close()
			_, err = statement.ExecContext(t.Context())
			return err
		},
	} {
		tx, release := b.lazy()
		b.stateIs(idle)
		if err := first(tx); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		b.stateIs(inTransaction)
		release()
		b.stateIs(idle)
	}
	b.expect("0")
}

func TestPreparedStatementsOfTheServiceRunInTheTransaction(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	statement, err := b.db.PrepareContext(t.Context(), `INSERT INTO effects VALUES ($1)`)
	kit.OK(t, err)
	defer statement.Close()
	tx, release := b.lazy()
	b.exec(tx, `INSERT INTO effects VALUES (1)`)
	inside := tx.StmtContext(t.Context(), statement)
	defer inside.Close()
	kit.OK(t, kit.Err(inside.ExecContext(t.Context(), 2)))
	b.stateIs(inTransaction)
	b.expect("0")
	kit.OK(t, tx.Commit())
	release()
	b.expect("0", "1", "2")
}

func TestEmptyTransactionSendsNothing(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	_, before := b.server()
	for _, end := range []func(tx *sql.Tx) error{(*sql.Tx).Commit, (*sql.Tx).Rollback} {
		tx, release := b.lazy()
		kit.OK(t, end(tx))
		release()
	}
	if state, query := b.server(); state != idle || query != before {
		t.Fatalf("the connection is %s after %q", state, query)
	}
	tx, err := b.db.BeginTx(t.Context(), nil) // no delayed BEGIN is left over
	kit.OK(t, err)
	b.stateIs(inTransaction)
	_ = tx.Rollback()
}

func TestTransactionsOfTheServiceBeginAtOnce(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	begun := func(tx *sql.Tx) error {
		b.stateIs(inTransaction)
		_, err := tx.ExecContext(t.Context(), `INSERT INTO effects VALUES (1)`)
		return err
	}
	kit.OK(t, b.ours.InTx(t.Context(), b.db, begun))
	for _, options := range []*sql.TxOptions{nil, {Isolation: sql.LevelSerializable}, {ReadOnly: true}} {
		tx, err := b.db.BeginTx(context.Background(), options)
		kit.OK(t, err)
		b.stateIs(inTransaction)
		_ = tx.Rollback()
	}
	for _, options := range []*sql.TxOptions{{Isolation: sql.LevelSerializable}, {ReadOnly: true}} {
		tx, err := b.db.BeginTx(dialect.StartWithText(context.Background()), options)
		kit.OK(t, err)
		b.stateIs(inTransaction)
		_ = tx.Rollback()
	}
	b.expect("0", "1")
}

// lib/pq watches the context of a transaction that the service has begun, and ends the
// watch with the transaction. The next transaction of this module on the same
// connection must not end the watch a second time, because that would break the
// connection.
func TestDelayedBeginAfterTransactionOfTheService(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	for n := range 3 {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		tx, err := b.db.BeginTx(ctx, nil)
		kit.OK(t, err)
		b.exec(tx, `INSERT INTO effects VALUES ($1)`, 1+5*n)
		kit.OK(t, tx.Commit())
		b.effect(2 + 5*n)
		tx, release := b.lazy()
		b.stateIs(idle) // the BEGIN of the previous transaction was not delayed, but the BEGIN of this transaction is
		kit.OK(t, tx.Rollback())
		release()
		b.effect(3 + 5*n)
		cancel()
		b.effect(4 + 5*n)
		b.effect(5 + 5*n)
	}
	b.expect("0", "1", "2", "3", "4", "5", "6", "7", "8", "9", "10", "11", "12", "13", "14", "15")
}

// lib/pq has watched the context of a transaction, and the next BEGIN fails. Then
// lib/pq has begun no new transaction, so a commit or rollback would still end this
// watch a second time. So the BEGIN after the failed one must not be delayed either.
func TestDelayedBeginAfterFailedBegin(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	want := []string{"0"}
	for n := range 3 {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		tx, err := b.db.BeginTx(ctx, nil)
		kit.OK(t, err)
		kit.OK(t, tx.Commit())
		if _, err := b.db.BeginTx(context.Background(), &sql.TxOptions{Isolation: sql.LevelSnapshot}); err == nil {
			t.Fatal("PostgreSQL accepts an unknown isolation level")
		}
		for m := range 4 {
			b.effect(1 + 4*n + m)
			want = append(want, strconv.Itoa(1+4*n+m))
		}
	}
	b.expect(want...)
}

func TestOtherDriverIsRefused(t *testing.T) {
	t.Parallel()
	lite := kit.SQLite(t)
	db := sql.OpenDB(lazytx.Connector(opener{lite.Driver(), lite.DSN}))
	defer db.Close()
	err := db.PingContext(t.Context())
	if err == nil || !strings.Contains(err.Error(), "not a connection of lib/pq or of pgx") {
		t.Fatalf("the error is %v", err)
	}
}

type opener struct {
	driver driver.Driver
	dsn    string
}

func (o opener) Connect(context.Context) (driver.Conn, error) { return o.driver.Open(o.dsn) }
func (o opener) Driver() driver.Driver                        { return o.driver }

// If a statement may have ended the transaction, COMMIT is sent with a check: a
// statement that fails if the transaction has ended. This also applies to prepared
// statements.
func TestCheckIsSentIfAStatementMayHaveEndedTheTransaction(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(tx *sql.Tx) error{
		"text": func(tx *sql.Tx) error {
			_, err := tx.ExecContext(t.Context(), `ROLLBACK AND CHAIN`)
			return err
		},
		"query": func(tx *sql.Tx) error {
			rows, err := tx.QueryContext(t.Context(), `ROLLBACK AND CHAIN`)
			if err != nil {
				return err
			}
			defer rows.Close()
			for rows.Next() {
			}
			return rows.Err()
		},
		"prepared": func(tx *sql.Tx) error {
			prepared, err := tx.PrepareContext(t.Context(), `ROLLBACK AND CHAIN`)
			if err != nil {
				return err
			}
			defer prepared.Close()
			_, err = prepared.ExecContext(t.Context())
			return err
		},
	} {
		b := newBench(t) // nothing was prepared on this connection
		check := &dialect.Check{SQL: `SELECT 1 / 0`}
		tx, release, err := dialect.Begin(dialect.WithCheck(dialect.StartWithText(context.WithoutCancel(t.Context())), check), b.db, nil)
		kit.OK(t, err)
		b.exec(tx, `INSERT INTO effects VALUES (1)`)
		kit.OK(t, end(tx))
		if err := tx.Commit(); err == nil || !check.Sent {
			t.Errorf("%s: COMMIT was sent without the check: %v", name, err)
		}
		release()
		b.expect("0")
	}
}

// A commit of a failed transaction returns the same error as without this package.
func TestCommitOfFailedTransactionReturnsError(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	tx, release := b.lazy()
	b.exec(tx, `INSERT INTO effects VALUES (1)`)
	if _, err := tx.ExecContext(t.Context(), `INSERT INTO effects VALUES ('no number')`); err == nil {
		t.Fatal("the statement succeeded")
	}
	b.stateIs(failed)
	if err := b.ours.Commit(tx); err == nil || errors.Is(err, dialect.ErrCommitUnknown) {
		t.Fatalf("the commit returned %v", err)
	}
	release()
	b.stateIs(idle)
	b.expect("0")
}

// After an error of the first statement, the next BEGIN is sent immediately, because
// the server may have become a replica.
func TestBeginIsSentAtOnceAfterError(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	tx, release := b.lazy()
	if _, err := tx.ExecContext(t.Context(), `INSERT INTO effects VALUES ('no number')`); err == nil {
		t.Fatal("the statement succeeded")
	}
	b.stateIs(failed)
	release()
	_, release = b.lazy()
	b.stateIs(inTransaction)
	release()
	b.effect(1)
	b.lazy()
	b.stateIs(idle)
}

// After a connection has been idle, BEGIN is sent immediately. If the connection is
// dead, the pool takes another connection.
func TestIdleConnectionIsCheckedByBegin(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.kill()
	b.setAlive(time.Now().Add(-2 * lazytx.MaxIdle))
	b.effect(1)
	b.expect("0", "1")
}

// If a connection has died while it was idle, only the next transaction on this
// connection fails.
func TestDeadConnectionFailsOneTransactionOnly(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.kill()
	b.setAlive(time.Now())
	tx, release := b.lazy()
	if _, err := tx.ExecContext(t.Context(), `INSERT INTO effects VALUES (1)`); !errors.Is(err, driver.ErrBadConn) {
		t.Fatalf("the statement returned %v", err)
	}
	release()
	b.effect(2)
	b.expect("0", "2")
}

// On a replica, BEGIN fails with the same error as without this package.
func TestReplicaErrorIsTheSame(t *testing.T) {
	kit.Long(t)
	t.Parallel()
	server := kit.PrivatePostgres(t)
	c, err := pq.NewConnector(server.DSN("postgres"))
	kit.OK(t, err)
	ours, err := dialect.New(schema.Config{})
	kit.OK(t, err)
	before := sql.OpenDB(c)
	defer before.Close()
	data := kit.One[string](t, before, `SHOW data_directory`)
	server.Stop()
	kit.OK(t, os.WriteFile(filepath.Join(data, "standby.signal"), nil, 0o600))
	kit.OK(t, server.Restart(t.Context()))
	for name, c := range map[string]driver.Connector{"without": c, "with": lazytx.Connector(c)} {
		db := sql.OpenDB(c)
		defer db.Close()
		for range 3 {
			err := ours.Write(t.Context(), db, func(*sql.Tx) error { return nil })
			if !dialect.Unavailable(err) || dialect.Refused(err) {
				t.Errorf("%s: %v", name, err)
			}
			if n := db.Stats().OpenConnections; n > 0 {
				t.Errorf("%s: the pool keeps the connection", name)
			}
		}
	}
}

func (b *bench) kill() {
	b.Helper()
	b.exec(b.others, `
		SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity
		WHERE datname = current_database() AND backend_type = 'client backend' AND pid <> pg_backend_pid()`)
}
