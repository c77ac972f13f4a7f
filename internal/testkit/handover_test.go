package testkit_test

import (
	"database/sql"
	"os"
	"strings"
	"testing"

	"github.com/watermill-once/once/internal/testkit"
)

func TestUsesDatabases(t *testing.T) {
	onlyAgain(t)
	if os.Getenv("TESTKIT_TABLES") != "" {
		testkit.UseTables()
	}
	db := testkit.Postgres(t)
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
	dsn = testkit.PrivatePostgres(t).DSN("postgres")
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
	t.Parallel()
	server, dsn := newServer(t)
	end, err := testkit.Present(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	const tables, own, dies = "TESTKIT_TABLES=1", testkit.OwnDatabases + "=1", "TESTKIT_DIES=1"

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
	t.Parallel()
	server, dsn := newServer(t)
	used(t, dsn)
	if left := databases(t, server); left != "" {
		t.Errorf("the databases %s are left", left)
	}
}
