package lazytx

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/lib/pq"

	"github.com/watermill-once/once/internal/dialect"
	"github.com/watermill-once/once/internal/testkit"
	"github.com/watermill-once/once/schema"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// bench is a pool of one connection, which others can look at.
type bench struct {
	*testing.T

	others *sql.DB
	db     *sql.DB
	ours   dialect.Dialect
}

func newBench(t *testing.T) *bench {
	t.Helper()
	database := testkit.Postgres(t)
	c, err := pq.NewConnector(database.DSN)
	if err != nil {
		t.Fatal(err)
	}
	b := &bench{T: t, others: database.DB, db: sql.OpenDB(Connector(c))}
	t.Cleanup(func() { _ = b.db.Close() })
	b.db.SetMaxOpenConns(1)
	if b.ours, err = dialect.New(schema.Config{}); err != nil {
		t.Fatal(err)
	}
	b.exec(b.others, `CREATE TABLE effects (n integer)`)
	b.effect(0)
	return b
}

// execer is a database or a transaction.
type execer interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
}

func (b *bench) exec(on execer, query string, args ...any) {
	b.Helper()
	if _, err := on.ExecContext(b.Context(), query, args...); err != nil {
		b.Fatal(err)
	}
}

// effect writes n in a transaction of ours, which leaves a connection that is
// known to be alive.
func (b *bench) effect(n int) {
	b.Helper()
	err := b.ours.Write(b.Context(), b.db, func(tx *sql.Tx) error {
		_, err := tx.ExecContext(b.Context(), `INSERT INTO effects VALUES ($1)`, n)
		return err
	})
	if err != nil {
		b.Fatal(err)
	}
}

func (b *bench) expect(want ...string) {
	b.Helper()
	var got string
	if err := b.others.QueryRowContext(b.Context(), `SELECT string_agg(n::text, ' ' ORDER BY n) FROM effects`).Scan(&got); err != nil {
		b.Fatal(err)
	}
	if got != strings.Join(want, " ") {
		b.Fatalf("the effects are %s, want %v", got, want)
	}
}

// lazy begins a transaction whose first statement is a text.
func (b *bench) lazy() (tx *sql.Tx, release func()) {
	b.Helper()
	tx, release, err := dialect.Begin(dialect.StartWithText(b.Context()), b.db, nil)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(release)
	return tx, release
}

// server returns what the server says of the pool's connection.
func (b *bench) server() (state, query string) {
	b.Helper()
	err := b.others.QueryRowContext(b.Context(), `
		SELECT state, query FROM pg_stat_activity
		WHERE datname = current_database() AND backend_type = 'client backend' AND pid <> pg_backend_pid()`).Scan(&state, &query)
	if err != nil {
		b.Fatal(err)
	}
	return state, query
}

func (b *bench) stateIs(want string) {
	b.Helper()
	if state, query := b.server(); state != want {
		b.Fatalf("the connection is %s after %q, want %s", state, query, want)
	}
}

const (
	idle          = "idle"
	inTransaction = "idle in transaction"
	failed        = "idle in transaction (aborted)"
)

// setAlive changes when the connection was seen to be alive.
func (b *bench) setAlive(at time.Time) {
	b.Helper()
	pooled, err := b.db.Conn(b.Context())
	if err == nil {
		err = errors.Join(pooled.Raw(func(c any) error {
			c.(*conn).alive = at
			return nil
		}), pooled.Close())
	}
	if err != nil {
		b.Fatal(err)
	}
}

func TestBeginGoesWithTheFirstStatement(t *testing.T) {
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
		if err := end(tx); err != nil {
			t.Fatal(err)
		}
		release()
		b.stateIs(idle)
	}
	b.expect("0", "1", "2")
}

// The count that a claim goes by is that of its own statement.
func TestResultIsThatOfTheStatement(t *testing.T) {
	b := newBench(t)
	tx, _ := b.lazy()
	result, err := tx.ExecContext(t.Context(), `SET LOCAL lock_timeout = 7; INSERT INTO effects VALUES (1), (2), (3)`)
	if err != nil {
		t.Fatal(err)
	}
	if rows, err := result.RowsAffected(); err != nil || rows != 3 {
		t.Fatalf("%d rows, %v", rows, err)
	}
}

func TestIsolationIsKept(t *testing.T) {
	b := newBench(t)
	b.exec(b.others, `ALTER ROLE CURRENT_USER IN DATABASE `+b.name()+` SET default_transaction_isolation = 'serializable'`)
	b.db.SetMaxIdleConns(0) // the default is that of new connections
	b.db.SetMaxIdleConns(1)
	b.effect(1)
	err := b.ours.Write(t.Context(), b.db, func(tx *sql.Tx) error {
		if _, query := b.server(); !strings.HasPrefix(query, "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE; SET LOCAL") {
			t.Errorf("the first statement was %q", query)
		}
		if isolation := isolationOf(t, tx); isolation != "read committed" {
			t.Errorf("a transaction of ours is %s", isolation)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	tx, _ := b.lazy()
	b.exec(tx, `SET LOCAL lock_timeout = 7`)
	if isolation := isolationOf(t, tx); isolation != "serializable" {
		t.Fatalf("that of a handler is %s", isolation)
	}
}

func isolationOf(t *testing.T, tx *sql.Tx) (isolation string) {
	t.Helper()
	if err := tx.QueryRowContext(t.Context(), `SHOW transaction_isolation`).Scan(&isolation); err != nil {
		t.Fatal(err)
	}
	return isolation
}

func (b *bench) name() (name string) {
	b.Helper()
	if err := b.others.QueryRowContext(b.Context(), `SELECT current_database()`).Scan(&name); err != nil {
		b.Fatal(err)
	}
	return name
}

// A statement that leaves no room for BEGIN finds itself in the transaction all
// the same.
func TestWhateverComesFirstIsInside(t *testing.T) {
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

// What the service has prepared on its database goes with the transaction.
func TestStatementsOfTheService(t *testing.T) {
	b := newBench(t)
	statement, err := b.db.PrepareContext(t.Context(), `INSERT INTO effects VALUES ($1)`)
	if err != nil {
		t.Fatal(err)
	}
	defer statement.Close()
	tx, release := b.lazy()
	b.exec(tx, `INSERT INTO effects VALUES (1)`)
	inside := tx.StmtContext(t.Context(), statement)
	defer inside.Close()
	if _, err := inside.ExecContext(t.Context(), 2); err != nil {
		t.Fatal(err)
	}
	b.stateIs(inTransaction)
	b.expect("0")
	if err := tx.Commit(); err != nil {
		t.Fatal(err)
	}
	release()
	b.expect("0", "1", "2")
}

func TestNothingIsSentForNothing(t *testing.T) {
	b := newBench(t)
	_, before := b.server()
	for _, end := range []func(tx *sql.Tx) error{(*sql.Tx).Commit, (*sql.Tx).Rollback} {
		tx, release := b.lazy()
		if err := end(tx); err != nil {
			t.Fatal(err)
		}
		release()
	}
	if state, query := b.server(); state != idle || query != before {
		t.Fatalf("the connection is %s after %q", state, query)
	}
	tx, err := b.db.BeginTx(t.Context(), nil) // nothing is left to be sent with it
	if err != nil {
		t.Fatal(err)
	}
	b.stateIs(inTransaction)
	_ = tx.Rollback()
}

// The service's own transactions begin at once.
func TestOtherTransactions(t *testing.T) {
	b := newBench(t)
	begun := func(tx *sql.Tx) error {
		b.stateIs(inTransaction)
		_, err := tx.ExecContext(t.Context(), `INSERT INTO effects VALUES (1)`)
		return err
	}
	if err := b.ours.InTx(t.Context(), b.db, begun); err != nil {
		t.Fatal(err)
	}
	for _, options := range []*sql.TxOptions{nil, {Isolation: sql.LevelSerializable}, {ReadOnly: true}} {
		tx, err := b.db.BeginTx(context.Background(), options)
		if err != nil {
			t.Fatal(err)
		}
		b.stateIs(inTransaction)
		_ = tx.Rollback()
	}
	for _, options := range []*sql.TxOptions{{Isolation: sql.LevelSerializable}, {ReadOnly: true}} {
		tx, err := b.db.BeginTx(dialect.StartWithText(context.Background()), options)
		if err != nil {
			t.Fatal(err)
		}
		b.stateIs(inTransaction)
		_ = tx.Rollback()
	}
	b.expect("0", "1")
}

// lib/pq watches the contexts of the service's transactions, and ours must not
// end that watch again.
func TestAfterTransactionsOfTheService(t *testing.T) {
	b := newBench(t)
	for n := range 3 {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		tx, err := b.db.BeginTx(ctx, nil)
		if err != nil {
			t.Fatal(err)
		}
		b.exec(tx, `INSERT INTO effects VALUES ($1)`, 1+5*n)
		if err := tx.Commit(); err != nil {
			t.Fatal(err)
		}
		b.effect(2 + 5*n)
		tx, release := b.lazy()
		b.stateIs(idle) // the one before has begun at once, and this need not
		if err := tx.Rollback(); err != nil {
			t.Fatal(err)
		}
		release()
		b.effect(3 + 5*n)
		cancel()
		b.effect(4 + 5*n)
		b.effect(5 + 5*n)
	}
	b.expect("0", "1", "2", "3", "4", "5", "6", "7", "8", "9", "10", "11", "12", "13", "14", "15")
}

// A commit of what has failed says so, as without this package.
func TestFailedIsNotCommitted(t *testing.T) {
	b := newBench(t)
	tx, release := b.lazy()
	b.exec(tx, `INSERT INTO effects VALUES (1)`)
	if _, err := tx.ExecContext(t.Context(), `INSERT INTO effects VALUES ('no number')`); err == nil {
		t.Fatal("it was stored")
	}
	b.stateIs(failed)
	if err := b.ours.Commit(tx); err == nil || errors.Is(err, dialect.ErrCommitUnknown) {
		t.Fatalf("the commit returned %v", err)
	}
	release()
	b.stateIs(idle)
	b.expect("0")
}

// After an error of the first statement the connection is asked before it is
// trusted again: it may lead to a replica.
func TestFailureIsNotTrusted(t *testing.T) {
	b := newBench(t)
	tx, release := b.lazy()
	if _, err := tx.ExecContext(t.Context(), `INSERT INTO effects VALUES ('no number')`); err == nil {
		t.Fatal("it was stored")
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

// A connection that rested is asked, and another one taken if it has died.
func TestRestedConnection(t *testing.T) {
	b := newBench(t)
	b.kill()
	b.setAlive(time.Now().Add(-2 * rested))
	b.effect(1)
	b.expect("0", "1")
}

// One that has died since it was used costs the work that has it, which is
// told, and no other.
func TestDeadConnection(t *testing.T) {
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

func (b *bench) kill() {
	b.Helper()
	b.exec(b.others, `
		SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity
		WHERE datname = current_database() AND backend_type = 'client backend' AND pid <> pg_backend_pid()`)
}

func TestOtherDriver(t *testing.T) {
	lite := testkit.SQLite(t)
	db := sql.OpenDB(Connector(opener{lite.Driver(), lite.DSN}))
	defer db.Close()
	err := db.PingContext(t.Context())
	if err == nil || !strings.Contains(err.Error(), "no connection of lib/pq") {
		t.Fatalf("the error is %v", err)
	}
}

type opener struct {
	driver driver.Driver
	dsn    string
}

func (o opener) Connect(context.Context) (driver.Conn, error) { return o.driver.Open(o.dsn) }
func (o opener) Driver() driver.Driver                        { return o.driver }
