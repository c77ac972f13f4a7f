package kit_test

import (
	"database/sql"
	"testing"

	"github.com/watermill-once/once/internal/test/kit"
)

func TestSessionsAreKeptForTheNextTest(t *testing.T) {
	db := kit.Postgres(t)
	for name, c := range map[string]struct {
		do   func(t *testing.T, conn *sql.Conn)
		kept bool
	}{
		"after a change": {func(t *testing.T, conn *sql.Conn) {
			t.Helper()
			for _, statement := range []string{
				"CREATE TEMPORARY TABLE t (id int)", "PREPARE p AS SELECT 1", "LISTEN news", "SELECT pg_advisory_lock(1)",
				"DECLARE c CURSOR WITH HOLD FOR SELECT 1", "SET search_path = nowhere", "SET SESSION AUTHORIZATION pg_monitor",
			} {
				if _, err := conn.ExecContext(t.Context(), statement); err != nil {
					t.Fatal(err)
				}
			}
		}, true},
		"after an error": {func(t *testing.T, conn *sql.Conn) {
			t.Helper()
			if _, err := conn.ExecContext(t.Context(), "SELECT 1/0"); err == nil {
				t.Error("a division by 0 has a result")
			}
		}, true},
		"in a transaction": {func(t *testing.T, conn *sql.Conn) {
			t.Helper()
			if _, err := conn.ExecContext(t.Context(), "BEGIN"); err != nil {
				t.Fatal(err)
			}
		}, false},
		"ended by another": {func(t *testing.T, conn *sql.Conn) {
			t.Helper()
			if _, err := db.ExecContext(t.Context(), "SELECT pg_terminate_backend($1, 10000)", pidOf(t, conn)); err != nil {
				t.Fatal(err)
			}
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			var first, second int
			t.Run("first", func(t *testing.T) {
				conn := connect(t)
				first = pidOf(t, conn)
				c.do(t, conn)
			})
			t.Run("second", func(t *testing.T) {
				conn := connect(t)
				second = pidOf(t, conn)
				var left int
				err := conn.QueryRowContext(t.Context(), `SELECT (SELECT count(*) FROM pg_prepared_statements WHERE name = 'p')
					+ (SELECT count(*) FROM pg_cursors WHERE name = 'c') + (SELECT count(*) FROM pg_listening_channels())
					+ (SELECT count(*) FROM pg_locks WHERE pid = pg_backend_pid() AND locktype = 'advisory')
					+ (SELECT count(*) FROM pg_class WHERE relpersistence = 't' AND pg_table_is_visible(oid))
					+ (current_user = 'pg_monitor')::int + (current_setting('search_path') = 'nowhere')::int`).Scan(&left)
				if err != nil || left != 0 {
					t.Errorf("%d changes are left (%v)", left, err)
				}
			})
			if (first == second) != c.kept {
				t.Errorf("session %d, then %d; want the same: %v", first, second, c.kept)
			}
		})
	}
}

func TestKeptSessionsThatTheServerHasEndedAreNotUsed(t *testing.T) {
	t.Run("first", keepTwo)
	t.Run("second", func(t *testing.T) {
		db := kit.Postgres(t)
		conn, err := db.Conn(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = conn.Close() }()
		var ended int
		err = conn.QueryRowContext(t.Context(), `SELECT count(pg_terminate_backend(pid, 10000)) FROM pg_stat_activity
			WHERE datname = current_database() AND backend_type = 'client backend' AND pid <> pg_backend_pid()`).Scan(&ended)
		if err != nil || ended == 0 {
			t.Fatalf("%d sessions were kept (%v)", ended, err)
		}
		another, err := db.Conn(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = another.Close() }()
		pidOf(t, another)
	})
}

// keepTwo uses two sessions of a database at the same time.
func keepTwo(t *testing.T) {
	t.Helper()
	db := kit.Postgres(t)
	for range 2 {
		conn, err := db.Conn(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = conn.Close() }()
	}
}

// A test closes its sessions to get new ones, perhaps after ALTER DATABASE ... SET.
func TestNoSessionIsKeptIfTheTestClosesOne(t *testing.T) {
	t.Run("first", keepTwo)
	t.Run("second", func(t *testing.T) {
		db := kit.Postgres(t)
		if _, err := db.ExecContext(t.Context(), `DO $$ BEGIN
			EXECUTE format('ALTER DATABASE %I SET lock_timeout = 7', current_database()); END $$`); err != nil {
			t.Fatal(err)
		}
		db.SetMaxIdleConns(0)
		var timeout string
		if err := db.QueryRowContext(t.Context(), "SHOW lock_timeout").Scan(&timeout); err != nil || timeout != "7ms" {
			t.Errorf("lock_timeout is %s (%v), want 7ms", timeout, err)
		}
	})
}

// connect returns a connection of the database that the next call gets after this test.
func connect(t *testing.T) *sql.Conn {
	t.Helper()
	conn, err := kit.Postgres(t).Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

func pidOf(t *testing.T, conn *sql.Conn) (pid int) {
	t.Helper()
	if err := conn.QueryRowContext(t.Context(), "SELECT pg_backend_pid()").Scan(&pid); err != nil {
		t.Fatal(err)
	}
	return pid
}
