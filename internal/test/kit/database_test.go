package kit_test

import (
	"database/sql"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/watermill-once/once/internal/test/kit"
)

func TestDatabaseIsNewAndPrivate(t *testing.T) {
	kit.EachDatabase(t, func(t *testing.T, db kit.Database) {
		var other kit.Database
		if db.Dialect == "sqlite" {
			other = kit.SQLite(t)
		} else {
			other = kit.Postgres(t)
		}
		for _, db := range []kit.Database{db, other} {
			if _, err := db.ExecContext(t.Context(), "CREATE TABLE same (id int)"); err != nil {
				t.Error(err)
			}
		}
	})
}

func TestUsedDatabaseIsLikeANewOne(t *testing.T) {
	kit.Long(t)
	nameOf := func(t *testing.T, db kit.Database) (name string) {
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
				db := kit.Postgres(t)
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
				db := kit.Postgres(t)
				next = nameOf(t, db)
				var left int
				err := db.QueryRowContext(t.Context(), `SELECT (SELECT count(*) FROM pg_class WHERE oid >= 16384)
					+ (SELECT count(*) FROM pg_proc WHERE oid >= 16384) + (SELECT count(*) FROM pg_db_role_setting WHERE setdatabase <> 0
						AND setdatabase = (SELECT oid FROM pg_database WHERE datname = current_database()))
					+ (SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()
						AND state <> 'idle')`).Scan(&left)
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
	kit.Long(t)
	t.Parallel()
	for i := range 8 {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			t.Parallel()
			if err := kit.Postgres(t).PingContext(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestSQLiteTransactionsRunOneAfterAnother(t *testing.T) {
	db := kit.SQLite(t)
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

func TestUsesTables(t *testing.T) {
	onlyAgain(t)
	kit.UseTables()
	for _, c := range []struct {
		change string
		reused bool
	}{
		{"INSERT INTO once_versions SELECT 'c', 't', i::text, i, 1, now() FROM generate_series(1, 10) AS i", true},
		{"DELETE FROM once_slots WHERE slot > 3", true},
		{"UPDATE once_slots SET owner = 'somebody'; SELECT nextval('once_outbox_position')", true},
		{"CREATE TABLE orders (id bigserial PRIMARY KEY); CREATE VIEW seen AS SELECT * FROM orders", true},
		{"CREATE TABLE effects (n bigint GENERATED ALWAYS AS IDENTITY, text text)", true},
		{"CREATE SEQUENCE alone; CREATE SCHEMA service", true},
		{`CREATE FUNCTION f() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
			CREATE TRIGGER t BEFORE INSERT ON once_inbox FOR EACH ROW EXECUTE FUNCTION f()`, true},
		{"ALTER TABLE once_inbox ADD COLUMN more int", false},
		{"ALTER TABLE once_parked ALTER COLUMN topic SET DEFAULT 'x'", false},
		{"ALTER TABLE once_parked SET (fillfactor = 50)", false},
		{"DROP TABLE once_idempotency_keys", false},
		{"DROP INDEX once_parked_due", false},
		{"ALTER INDEX once_parked_due RENAME TO once_parked_other", false},
		{"GRANT SELECT ON once_parked TO pg_monitor", false},
		{"GRANT SELECT (topic) ON once_parked TO pg_monitor", false},
		{"ALTER SEQUENCE once_outbox_position INCREMENT 2", false},
		{"ANALYZE once_slots", false},
	} {
		t.Run(c.change, func(t *testing.T) {
			var before, after, first, second string
			t.Run("first", func(t *testing.T) {
				db := kit.Postgres(t)
				first, before = look(t, db)
				if _, err := db.ExecContext(t.Context(), c.change); err != nil {
					t.Fatal(err)
				}
			})
			t.Run("second", func(t *testing.T) { second, after = look(t, kit.Postgres(t)) })
			if after != before {
				t.Errorf("the second test has\n%s\nand the first one had\n%s", after, before)
			}
			if (first == second) != c.reused {
				t.Errorf("table %s, then %s; want the same: %v", first, second, c.reused)
			}
		})
	}
}

// look returns the database and the OID of a table, and the content of the tables.
func look(t *testing.T, db kit.Database) (table, content string) {
	t.Helper()
	err := db.QueryRowContext(t.Context(), `SELECT current_database() || ' ' || 'once_parked'::regclass::oid,
		concat_ws(';', (SELECT json_agg(s ORDER BY slot) FROM once_slots AS s), (SELECT json_agg(m) FROM once_migrations AS m),
			(SELECT count(*) FROM once_versions), nextval('once_outbox_position'),
			(SELECT json_agg(relname ORDER BY relname) FROM pg_class WHERE oid >= 16384 AND relname !~ '^pg_toast'),
			(SELECT count(*) FROM pg_trigger WHERE oid >= 16384), (SELECT count(*) FROM pg_proc WHERE oid >= 16384),
			(SELECT count(*) FROM pg_namespace WHERE nspname !~ '_temp_'), (SELECT sum(n_tup_del) FROM pg_stat_user_tables))`).Scan(&table, &content)
	if err != nil {
		t.Fatal(err)
	}
	return table, content
}

func TestUsedTablesAreLikeNewOnes(t *testing.T) {
	kit.Long(t)
	if output, err := rerun(t, "TestUsesTables"); err != nil {
		t.Errorf("%v\n%s", err, output)
	}
}

func TestUsesDatabases(t *testing.T) {
	onlyAgain(t)
	if os.Getenv("TESTKIT_TABLES") != "" {
		kit.UseTables()
	}
	db := kit.Postgres(t)
	var oid string
	err := db.QueryRowContext(t.Context(), "SELECT oid FROM pg_database WHERE datname = current_database()").Scan(&oid)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("database %q", oid)
	if os.Getenv("TESTKIT_TABLES") != "" {
		if _, err := db.ExecContext(t.Context(), "DELETE FROM once_slots"); err != nil {
			t.Fatal(err)
		}
	} else if _, err := db.ExecContext(t.Context(), "CREATE TABLE orders (id int)"); err != nil {
		t.Fatal(err)
	}
	if os.Getenv("TESTKIT_DIES") != "" {
		os.Exit(3)
	}
}

// used runs TestUsesDatabases in another process, and returns the OID of its database.
func used(t *testing.T, dsn string, environment ...string) (oid string) {
	t.Helper()
	output, err := rerun(t, "TestUsesDatabases", append(environment, "PG_DSN="+dsn)...)
	_, rest, found := strings.Cut(output, `database "`)
	oid, _, _ = strings.Cut(rest, `"`)
	died := strings.Contains(strings.Join(environment, " "), "TESTKIT_DIES")
	if !found || (err == nil) == died {
		t.Fatalf("%v\n%s", err, output)
	}
	return oid
}

// newServer returns a private server, and its DSN.
func newServer(t *testing.T) (server *sql.DB, dsn string) {
	t.Helper()
	dsn = kit.PrivatePostgres(t).DSN("postgres")
	server, err := sql.Open("postgres", dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = server.Close() })
	return server, dsn
}

// databases returns the names of the databases on a server, without the server's own ones.
func databases(t *testing.T, server *sql.DB) (names string) {
	t.Helper()
	err := server.QueryRowContext(t.Context(), `SELECT coalesce(string_agg(datname, ' '), '') FROM pg_database
		WHERE datname NOT IN (current_database(), 'postgres', 'template0', 'template1')`).Scan(&names)
	if err != nil {
		t.Fatal(err)
	}
	return names
}

func TestDatabasesAreHandedOverAndDroppedByTheLastProcess(t *testing.T) {
	kit.Long(t)
	t.Parallel()
	server, dsn := newServer(t)
	end, err := kit.Present(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	const tables, own, dies = "TESTKIT_TABLES=1", kit.OwnDatabases + "=1", "TESTKIT_DIES=1"

	withTables, empty := used(t, dsn, tables), used(t, dsn)
	for _, c := range []struct {
		name        string
		environment []string
		same        bool // as before, with or without tables
		database    string
	}{
		{"without tables", nil, true, empty},
		{"with tables", []string{tables}, true, withTables},
		{"own", []string{own}, false, empty},
		{"own, with tables", []string{own, tables}, false, withTables},
		{"dies", []string{tables, dies}, true, withTables},
		{"after one that has died", []string{tables}, false, withTables},
	} {
		if got := used(t, dsn, c.environment...); (got == c.database) != c.same {
			t.Errorf("%s: the database is %s, want the same as before (%s): %v", c.name, got, c.database, c.same)
		}
	}
	if _, err := server.ExecContext(t.Context(), "CREATE DATABASE once_test_mine"); err != nil {
		t.Fatal(err)
	}
	if err := end(); err != nil {
		t.Fatal(err)
	}
	if left := databases(t, server); left != "once_test_mine" {
		t.Errorf("the databases %s are left, want once_test_mine only", left)
	}
}

func TestDatabasesOfAProcessThatIsAloneAreDropped(t *testing.T) {
	kit.Long(t)
	t.Parallel()
	server, dsn := newServer(t)
	used(t, dsn)
	if left := databases(t, server); left != "" {
		t.Errorf("the databases %s are left", left)
	}
}
