package schema_test

import (
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/schema"
)

// withPath returns a pool for the same database with another search path.
func withPath(t *testing.T, db kit.Database, path string) *sql.DB {
	t.Helper()
	separator := "?"
	if strings.Contains(db.DSN, "?") {
		separator = "&"
	}
	other, err := sql.Open("postgres", db.DSN+separator+"search_path="+path)
	kit.OK(t, err)
	t.Cleanup(func() { _ = other.Close() })
	return other
}

func exec(t *testing.T, db *sql.DB, statements ...string) {
	t.Helper()
	for _, statement := range statements {
		if _, err := db.ExecContext(t.Context(), statement); err != nil {
			t.Fatalf("%s: %v", statement, err)
		}
	}
}

// outboxes returns how many outboxes the database contains.
func outboxes(t *testing.T, db *sql.DB) (n int) {
	t.Helper()
	kit.OK(t, db.QueryRowContext(t.Context(), `SELECT count(*) FROM pg_class WHERE relname = 'once_outbox'`).Scan(&n))
	return n
}

// Trap 115. Tables are in schema public. Then somebody creates a schema that comes before
// public in the search path.
func TestTrap115_UpDoesNotCreateASecondSetOfTables(t *testing.T) {
	t.Parallel()
	db := kit.Postgres(t)
	path := withPath(t, db, "app,public")
	kit.OK(t, schema.Up(t.Context(), path, schema.Config{}))
	exec(t, db.DB, `CREATE SCHEMA app`)
	exec(t, path, `SELECT 1`)

	const want = `schema: up: it is ambiguous which schema contains the tables: schema "public" contains tables with the prefix "once_", ` +
		`but "app" is now the first schema of the search path: to use the existing tables, set Config.Schema to "public" in all parts, ` +
		`or remove "app" from the search path (options=-csearch_path=public in the data source name); ` +
		`for a second, empty set of tables, set Config.Schema to "app"`
	if err := schema.Up(t.Context(), path, schema.Config{}); !errors.Is(err, schema.ErrAmbiguous) || err.Error() != want {
		t.Errorf("Up returned\n%v, want\n%s", err, want)
	}
	text, err := schema.SQL(schema.Config{})
	kit.OK(t, err)
	const quoted = `the tables are in schema public, which is not the first schema of the search path: ` +
		`set the schema in schema.Config or with --schema`
	if _, err := path.ExecContext(t.Context(), text); err == nil || !strings.Contains(err.Error(), quoted) {
		t.Errorf("the text of SQL failed with %v, want %s", err, quoted)
	}
	if n := outboxes(t, db.DB); n != 1 {
		t.Fatalf("%d outboxes, want 1", n)
	}

	// The statements of this library still find the tables, so Check succeeds.
	found, err := schema.Find(t.Context(), path, schema.Config{})
	if err != nil || found.Schema != "public" {
		t.Errorf("Find returned %q, %v, want public", found.Schema, err)
	}
	for _, name := range []string{"", "public"} {
		if err := schema.Check(t.Context(), path, schema.Config{Schema: name}); err != nil {
			t.Errorf("Check of schema %q: %v", name, err)
		}
	}
	if err := schema.Up(t.Context(), path, schema.Config{Schema: "public"}); err != nil {
		t.Errorf("Up of schema public: %v", err)
	}

	// A second set is created if the configuration asks for it.
	kit.OK(t, schema.Up(t.Context(), path, schema.Config{Schema: "app"}))
	if n := outboxes(t, db.DB); n != 2 {
		t.Fatalf("%d outboxes, want 2", n)
	}
	const both = `it is ambiguous which schema contains the tables: the schemas "app" and "public" of the search path contain tables ` +
		`with the prefix "once_": find out which of them has your messages, and set Config.Schema to it in all parts, ` +
		`or leave only this schema in the search path (options=-csearch_path=public in the data source name)`
	for begin, err := range map[string]error{
		"schema: ":     schema.Check(t.Context(), path, schema.Config{}),
		"schema: up: ": schema.Up(t.Context(), path, schema.Config{}),
	} {
		if !errors.Is(err, schema.ErrAmbiguous) || err.Error() != begin+both {
			t.Errorf("with two sets:\n%v, want\n%s", err, begin+both)
		}
	}
	for _, name := range []string{"app", "public"} {
		found, err := schema.Find(t.Context(), path, schema.Config{Schema: name})
		if err := errors.Join(err, schema.Check(t.Context(), path, schema.Config{Schema: name})); err != nil || found.Schema != name {
			t.Errorf("schema %q: found %q, %v", name, found.Schema, err)
		}
	}
}

// Trap 115. A single table in another schema of the search path, or a temporary table,
// hides a table of the complete set.
func TestTrap115_TableThatHidesAnotherIsRefused(t *testing.T) {
	t.Parallel()
	db := kit.Postgres(t)
	kit.OK(t, schema.Up(t.Context(), db.DB, schema.Config{}))
	exec(t, db.DB, `CREATE SCHEMA app`)
	for statement, want := range map[string]string{
		`CREATE TABLE app.once_inbox (x integer)`:                         `the schemas "app" and "public"`,
		`CREATE VIEW app.once_parked AS SELECT * FROM public.once_parked`: `the schemas "app" and "public"`,
		`CREATE TEMPORARY TABLE once_outbox (x integer)`: `temporary tables of this session with the prefix "once_" ` +
			`hide the tables in schema "public": drop them`,
	} {
		path := withPath(t, db, "app,public")
		path.SetMaxOpenConns(1)
		exec(t, path, statement)
		for name, err := range map[string]error{
			"Check": schema.Check(t.Context(), path, schema.Config{}),
			"Up":    schema.Up(t.Context(), path, schema.Config{}),
		} {
			if !errors.Is(err, schema.ErrAmbiguous) || !strings.Contains(fmt.Sprint(err), want) {
				t.Errorf("%s: %s returned %v, want an error with %s", statement, name, err, want)
			}
		}
		if err := schema.Check(t.Context(), path, schema.Config{Schema: "public"}); err != nil {
			t.Errorf("%s: Check of schema public: %v", statement, err)
		}
		exec(t, path, `DROP TABLE IF EXISTS pg_temp.once_outbox`, `DROP VIEW IF EXISTS app.once_parked`)
		if strings.Contains(statement, "app.once_inbox") {
			exec(t, path, `DROP TABLE app.once_inbox`)
		}
	}
}

// Trap 115. Tables that a failed or older tool has left count as well.
func TestTrap115_PartialSetIsNotCompletedInAnotherSchema(t *testing.T) {
	t.Parallel()
	db := kit.Postgres(t)
	exec(t, db.DB, `CREATE SCHEMA app`, `CREATE TABLE once_outbox (x integer)`)
	path := withPath(t, db, "app,public")
	if err := schema.Check(t.Context(), path, schema.Config{}); !errors.Is(err, schema.ErrMissing) {
		t.Errorf("Check returned %v, want ErrMissing", err)
	}
	err := schema.Up(t.Context(), path, schema.Config{})
	if !errors.Is(err, schema.ErrAmbiguous) || !strings.Contains(err.Error(), `"public" contains`) {
		t.Errorf("Up returned %v, want ErrAmbiguous", err)
	}
	if n := outboxes(t, db.DB); n != 1 {
		t.Fatalf("%d outboxes, want 1", n)
	}
}
