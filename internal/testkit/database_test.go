package testkit_test

import (
	"database/sql"
	"fmt"
	"strings"
	"testing"

	"github.com/watermill-once/once/internal/testkit"
)

func TestDatabaseIsNewAndPrivate(t *testing.T) {
	testkit.EachDatabase(t, func(t *testing.T, db testkit.Database) {
		var other testkit.Database
		if db.Dialect == "sqlite" {
			other = testkit.SQLite(t)
		} else {
			other = testkit.Postgres(t)
		}
		for _, db := range []testkit.Database{db, other} {
			if _, err := db.ExecContext(t.Context(), "CREATE TABLE same (id int)"); err != nil {
				t.Error(err)
			}
		}
	})
}

func TestDatabaseIsDroppedAfterItsTest(t *testing.T) {
	observer := testkit.Postgres(t)
	var name string
	t.Run("test", func(t *testing.T) {
		db := testkit.Postgres(t)
		// An open connection of the test does not keep the database.
		conn, err := db.Conn(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if err := conn.QueryRowContext(t.Context(), "SELECT current_database()").Scan(&name); err != nil {
			t.Fatal(err)
		}
	})
	var n int
	err := observer.QueryRowContext(t.Context(), "SELECT count(*) FROM pg_database WHERE datname = $1", name).Scan(&n)
	if err != nil || n != 0 {
		t.Errorf("there are %d databases %q (%v)", n, name, err)
	}
}

func TestManyDatabasesAreCreatedConcurrently(t *testing.T) {
	t.Parallel()
	for i := range 8 {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			t.Parallel()
			if err := testkit.Postgres(t).PingContext(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestSQLiteTransactionsRunOneAfterAnother(t *testing.T) {
	db := testkit.SQLite(t)
	for pragma, want := range map[string]string{"journal_mode": "wal", "synchronous": "1", "busy_timeout": "10000", "foreign_keys": "1"} {
		var got string
		if err := db.QueryRowContext(t.Context(), "PRAGMA "+pragma).Scan(&got); err != nil || got != want {
			t.Errorf("%s is %q (%v), want %q", pragma, got, err, want)
		}
	}
	first, err := db.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	impatient, err := sql.Open("sqlite", strings.Replace(db.DSN, "busy_timeout(10000)", "busy_timeout(1)", 1))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = impatient.Close() }()
	if second, err := impatient.BeginTx(t.Context(), nil); err == nil {
		t.Errorf("a second transaction began: %v", second.Rollback())
	}
	if err := first.Rollback(); err != nil {
		t.Fatal(err)
	}
}
