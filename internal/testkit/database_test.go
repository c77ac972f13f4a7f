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

func TestUsedDatabaseIsLikeANewOne(t *testing.T) {
	nameOf := func(t *testing.T, db testkit.Database) (name string) {
		t.Helper()
		if err := db.QueryRowContext(t.Context(), "SELECT current_database()").Scan(&name); err != nil {
			t.Fatal(err)
		}
		return name
	}
	for _, c := range []struct {
		change string
		reused bool
	}{
		{"CREATE TABLE orders (id bigserial PRIMARY KEY, state text); INSERT INTO orders DEFAULT VALUES", true},
		{"CREATE SCHEMA service; CREATE TABLE service.orders (id int); CREATE FUNCTION f() RETURNS int LANGUAGE sql AS 'SELECT 1'", true},
		{"DROP SCHEMA public", true},
		{"REVOKE ALL ON SCHEMA public FROM PUBLIC; GRANT CREATE ON SCHEMA public TO pg_monitor", true},
		{"DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET lock_timeout = 1', current_database()); END $$", false},
		{"DO $$ BEGIN EXECUTE format('REVOKE ALL ON DATABASE %I FROM PUBLIC', current_database()); END $$", false},
		{"ALTER DEFAULT PRIVILEGES GRANT ALL ON TABLES TO PUBLIC", false},
		{"SELECT lo_create(0)", false},
	} {
		t.Run(c.change, func(t *testing.T) {
			var used, next string
			t.Run("first", func(t *testing.T) {
				db := testkit.Postgres(t)
				used = nameOf(t, db)
				// An open transaction does not prevent the reuse of the database.
				conn, err := db.Conn(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				for _, statement := range []string{c.change, "BEGIN; CREATE SCHEMA uncommitted"} {
					if _, err := conn.ExecContext(t.Context(), statement); err != nil {
						t.Fatal(err)
					}
				}
			})
			t.Run("second", func(t *testing.T) {
				db := testkit.Postgres(t)
				next = nameOf(t, db)
				var left int
				err := db.QueryRowContext(t.Context(), `SELECT (SELECT count(*) FROM pg_class WHERE oid >= 16384)
					+ (SELECT count(*) FROM pg_proc WHERE oid >= 16384) + (SELECT count(*) FROM pg_db_role_setting WHERE setdatabase <> 0
						AND setdatabase = (SELECT oid FROM pg_database WHERE datname = current_database()))
					+ (SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid())`).Scan(&left)
				if err != nil || left != 0 {
					t.Errorf("%d objects and sessions are left (%v)", left, err)
				}
				if _, err := db.ExecContext(t.Context(), "CREATE TABLE t (id int)"); err != nil {
					t.Error(err)
				}
			})
			if (used == next) != c.reused {
				t.Errorf("used %s, then %s; want the same: %v", used, next, c.reused)
			}
		})
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
