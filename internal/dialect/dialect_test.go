package dialect_test

import (
	"context"
	"database/sql"
	"errors"
	"slices"
	"testing"

	"github.com/watermill-once/once/internal/dialect"
	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/schema"
)

func TestMain(m *testing.M) { kit.Main(m) }

func newDialect(t *testing.T, db kit.Database) dialect.Dialect {
	t.Helper()
	d := kit.Dialect(t, schema.Config{Dialect: schema.Dialect(db.Dialect)})
	return d
}

func TestListsArriveUnchanged(t *testing.T) {
	kit.EachDatabase(t, func(t *testing.T, db kit.Database) {
		d := newDialect(t, db)
		texts := []string{"", "a", `quote " and \ backslash`, "comma,brace{}", "NULL", "ünïcode 🐇", " space ", "'"}
		got := collect[string](t, db, d.SQL(`SELECT * FROM {list $1 text} AS l`), d.Strings(texts))
		if slices.Sort(texts); !slices.Equal(got, texts) {
			t.Errorf("got %q, want %q", got, texts)
		}
		numbers := []int64{-1 << 63, -5, 0, 7, 1<<63 - 1}
		if got := collect[int64](t, db, d.SQL(`SELECT * FROM {list $1 bigint} AS l`), d.List(numbers)); !slices.Equal(got, numbers) {
			t.Errorf("got %v, want %v", got, numbers)
		}
		is := d.SQL(`SELECT n FROM (SELECT CAST(-5 AS bigint) AS n UNION ALL SELECT 6) AS l WHERE n {among $1 bigint}`)
		if got := collect[int64](t, db, is, d.List(numbers)); !slices.Equal(got, []int64{-5}) {
			t.Errorf("{among} found %v", got)
		}
		if got := collect[int64](t, db, is, d.List(nil)); len(got) != 0 {
			t.Errorf("{among} of an empty list found %v", got)
		}
		for _, empty := range []string{d.Strings(nil), d.List(nil)} {
			if got := collect[string](t, db, d.SQL(`SELECT * FROM {list $1 text} AS l`), empty); len(got) != 0 {
				t.Errorf("the empty list %q arrives as %q", empty, got)
			}
		}
	})
}

func collect[T string | int64](t *testing.T, db kit.Database, query string, arg any) []T {
	t.Helper()
	rows, err := db.QueryContext(t.Context(), query, arg)
	kit.OK(t, err)
	defer rows.Close()
	var all []T
	for rows.Next() {
		var one T
		kit.OK(t, rows.Scan(&one))
		all = append(all, one)
	}
	kit.OK(t, rows.Err())
	slices.Sort(all)
	return all
}

func TestTrap58PanicRollsBackAndIsNotRecovered(t *testing.T) {
	kit.EachDatabase(t, func(t *testing.T, db kit.Database) {
		d := newDialect(t, db)
		exec(t, db, `CREATE TABLE work (n integer)`)
		func() {
			defer func() {
				if recover() != "boom" {
					t.Error("the panic was recovered")
				}
			}()
			_ = d.Write(t.Context(), db.DB, func(tx *sql.Tx) error {
				kit.Check(t, kit.Err(tx.ExecContext(t.Context(), `INSERT INTO work VALUES (1)`)))
				panic("boom")
			})
		}()
		var n int
		if err := db.QueryRowContext(t.Context(), `SELECT COUNT(*) FROM work`).Scan(&n); err != nil || n != 0 {
			t.Fatalf("%d rows, %v", n, err)
		}
		if db.Stats().InUse != 0 {
			t.Fatal("a connection was not returned to the pool")
		}
	})
}

func TestRefusedCommitIsNotUnknown(t *testing.T) {
	db := kit.Postgres(t)
	d := newDialect(t, db)
	exec(t, db, `CREATE TABLE work (n integer UNIQUE DEFERRABLE INITIALLY DEFERRED)`)
	err := d.Write(t.Context(), db.DB, func(tx *sql.Tx) error {
		_, err := tx.ExecContext(t.Context(), `INSERT INTO work VALUES (1), (1)`)
		return err
	})
	if dialect.State(err) != "23505" || errors.Is(err, dialect.ErrCommitUnknown) {
		t.Fatalf("got %v, want a unique violation that is not unknown", err)
	}
}

// The outcome of committing a failed transaction is known: a rollback. The driver's
// error for this has no code, so this test fails if a new version of the driver changes
// the text.
func TestCommitOfFailedTransactionIsNotUnknown(t *testing.T) {
	db := kit.Postgres(t)
	d := newDialect(t, db)
	err := d.Write(t.Context(), db.DB, func(tx *sql.Tx) error {
		if _, err := tx.ExecContext(t.Context(), `SELECT 1/0`); err == nil {
			t.Error("divided by zero")
		}
		return nil
	})
	if err == nil || errors.Is(err, dialect.ErrCommitUnknown) {
		t.Fatalf("got %v, want an error that is not ErrCommitUnknown", err)
	}
}

// If the connection is lost during the commit, the outcome is unknown. This does not
// apply to a read.
func TestCommitWithLostConnectionIsUnknown(t *testing.T) {
	db := kit.Postgres(t)
	d := newDialect(t, db)
	disconnected := func(tx *sql.Tx) error {
		var pid int
		if err := tx.QueryRowContext(t.Context(), `SELECT pg_backend_pid()`).Scan(&pid); err != nil {
			return err
		}
		exec(t, db, `SELECT pg_terminate_backend($1, 5000)`, pid)
		return nil
	}
	err := d.Write(t.Context(), db.DB, disconnected)
	if !errors.Is(err, dialect.ErrCommitUnknown) {
		t.Errorf("write: got %v, want ErrCommitUnknown", err)
	}
	err = d.Read(t.Context(), db.DB, disconnected)
	if err == nil || errors.Is(err, dialect.ErrCommitUnknown) {
		t.Errorf("read: got %v, want an error that is not ErrCommitUnknown", err)
	}
}

// After a restart of the server every idle connection of the pool is dead. Begin skips
// them.
func TestBeginSkipsDeadConnections(t *testing.T) {
	db := kit.Postgres(t)
	d := newDialect(t, db)
	const idle = 8
	db.SetMaxIdleConns(idle)
	var conns []*sql.Conn
	for range idle {
		conn, err := db.Conn(t.Context())
		kit.OK(t, err)
		conns = append(conns, conn)
	}
	for _, conn := range conns[1:] {
		kit.Exec(t, conns[0], `SELECT pg_terminate_backend($1, 5000)`, pid(t, conn))
	}
	for _, conn := range conns {
		kit.OK(t, conn.Close())
	}
	for range idle {
		kit.OK(t, d.Write(t.Context(), db.DB, func(tx *sql.Tx) error {
			_, err := tx.ExecContext(t.Context(), `SELECT 1`)
			return err
		}))
	}
}

func pid(t *testing.T, conn *sql.Conn) (n int) {
	t.Helper()
	kit.OK(t, conn.QueryRowContext(t.Context(), `SELECT pg_backend_pid()`).Scan(&n))
	return n
}

func exec(t *testing.T, db kit.Database, query string, args ...any) {
	t.Helper()
	kit.Exec(t, db, query, args...)
}

// Write must see the changes of other transactions, whatever the default isolation level
// is. InTx runs a function of the user, and keeps the default.
func TestWriteUsesReadCommittedAndInTxTheDefault(t *testing.T) {
	db := kit.Postgres(t)
	d := newDialect(t, db)
	db.SetMaxOpenConns(1)
	kit.Exec(t, db, `SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL REPEATABLE READ`)
	for name, c := range map[string]struct {
		in   func(ctx context.Context, db *sql.DB, work func(tx *sql.Tx) error) error
		want string
	}{
		"Write": {d.Write, "read committed"},
		"Read":  {d.Read, "read committed"},
		"InTx":  {d.InTx, "repeatable read"},
	} {
		var got string
		err := c.in(t.Context(), db.DB, func(tx *sql.Tx) error {
			return tx.QueryRowContext(t.Context(), `SHOW transaction_isolation`).Scan(&got)
		})
		if err != nil || got != c.want {
			t.Errorf("%s: %q, %v; want %q", name, got, err, c.want)
		}
	}
}
