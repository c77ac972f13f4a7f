package schema_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"regexp"
	"testing"

	"github.com/watermill-once/once/internal/testkit"
	"github.com/watermill-once/once/schema"
)

// fakeDatabase simulates a database that knows only one function, which returns its version.
type fakeDatabase struct{ function, version string }

func (a fakeDatabase) Connect(context.Context) (driver.Conn, error) { return a, nil }
func (a fakeDatabase) Driver() driver.Driver                        { return nil }
func (a fakeDatabase) Prepare(string) (driver.Stmt, error)          { return nil, errors.ErrUnsupported }

func (a fakeDatabase) Begin() (driver.Tx, error) { return nil, errors.ErrUnsupported }
func (a fakeDatabase) Close() error              { return nil }

func (a fakeDatabase) QueryContext(_ context.Context, query string, _ []driver.NamedValue) (driver.Rows, error) {
	if query != "SELECT "+a.function+"()" {
		return nil, fmt.Errorf("unknown query %s", query)
	}
	return &fakeRows{a.version}, nil
}

func openFake(t *testing.T, a fakeDatabase) *sql.DB {
	t.Helper()
	db := sql.OpenDB(a)
	t.Cleanup(func() { _ = db.Close() })
	return db
}

type fakeRows struct{ text string }

func (a *fakeRows) Columns() []string { return []string{"version"} }
func (a *fakeRows) Close() error      { return nil }
func (a *fakeRows) Next(to []driver.Value) error {
	if a.text == "" {
		return io.EOF
	}
	to[0], a.text = a.text, ""
	return nil
}

var serverVersion = regexp.MustCompile(`(SQLite|PostgreSQL) [0-9.]+`)

// withoutVersion returns the text of an error, without the version of the test's server.
func withoutVersion(err error) string {
	return serverVersion.ReplaceAllString(err.Error(), "$1 VERSION")
}

func TestDatabaseOfAnotherKindIsRefused(t *testing.T) {
	t.Parallel()
	const begins = "the database is not of the kind that Dialect names: "
	for name, test := range map[string]struct {
		db     *sql.DB
		config schema.Config
		want   string
	}{
		"SQLite": {
			testkit.SQLite(t).DB,
			schema.Config{},
			`Dialect is "postgres", the database is SQLite VERSION: set Config.Dialect to schema.SQLite`,
		},
		"PostgreSQL": {
			testkit.Postgres(t).DB,
			schema.Config{Dialect: schema.SQLite},
			`Dialect is "sqlite", the database is PostgreSQL VERSION: set Config.Dialect to schema.PostgreSQL`,
		},
		"MariaDB": {
			openFake(t, fakeDatabase{"version", "10.11.19-MariaDB-0+deb12u1"}),
			schema.Config{},
			`Dialect is "postgres", the database is 10.11.19-MariaDB-0+deb12u1: there is no dialect for it, use PostgreSQL or SQLite`,
		},
		"MySQL": {
			openFake(t, fakeDatabase{"version", "8.4.3"}),
			schema.Config{Dialect: schema.SQLite},
			`Dialect is "sqlite", the database is MySQL 8.4.3: there is no dialect for it, use PostgreSQL or SQLite`,
		},
		"another": {
			openFake(t, fakeDatabase{"version", "Quack 1"}),
			schema.Config{Dialect: schema.SQLite},
			`Dialect is "sqlite", the database is Quack 1: use a database of that kind`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			for what, err := range map[string]error{
				"schema: up: ":    schema.Up(t.Context(), test.db, test.config),
				"schema: check: ": schema.Check(t.Context(), test.db, test.config),
			} {
				if !errors.Is(err, schema.ErrDialect) || withoutVersion(err) != what+begins+test.want {
					t.Errorf("got  %v\nwant %s", err, what+begins+test.want)
				}
			}
		})
	}
}

// Derivatives of PostgreSQL are accepted, because their versions begin with a name.
func TestDerivativesOfPostgreSQLAreAccepted(t *testing.T) {
	t.Parallel()
	for _, version := range []string{"PostgreSQL 11.2-YB-2.25", "PostgreSQL 16.2 (EnterpriseDB)", "CockroachDB CCL v24"} {
		err := schema.Check(t.Context(), openFake(t, fakeDatabase{"version", version}), schema.Config{})
		if err == nil || errors.Is(err, schema.ErrDialect) {
			t.Errorf("%s: %v", version, err)
		}
	}
}

// A database of another kind is also refused in a transaction, in which PostgreSQL
// refuses every query after the first error.
func TestDatabaseOfAnotherKindIsRefusedInTransaction(t *testing.T) {
	t.Parallel()
	testkit.EachDatabase(t, func(t *testing.T, db testkit.Database) {
		other := map[string]schema.Dialect{"postgres": schema.SQLite, "sqlite": schema.PostgreSQL}[db.Dialect]
		tx, err := db.BeginTx(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = tx.Rollback() }()
		want := map[string]string{
			"postgres": `Dialect is "sqlite", the database is not SQLite: use a database of that kind`,
			"sqlite":   `Dialect is "postgres", the database is SQLite VERSION: set Config.Dialect to schema.SQLite`,
		}[db.Dialect]
		want = "schema: check: the database is not of the kind that Dialect names: " + want
		err = schema.Check(t.Context(), tx, schema.Config{Dialect: other})
		if !errors.Is(err, schema.ErrDialect) || withoutVersion(err) != want {
			t.Errorf("got  %v\nwant %s", err, want)
		}
	})
}

// Trap 86: a database that cannot store every text is refused. Otherwise it would
// refuse or change a text later.
func TestDatabaseWithOtherEncodingIsRefused(t *testing.T) {
	t.Parallel()
	for _, encoding := range []string{"LATIN1", "SQL_ASCII"} {
		t.Run(encoding, func(t *testing.T) {
			db := testkit.PostgresIn(t, encoding)
			var name string
			if err := db.QueryRowContext(t.Context(), `SELECT current_database()`).Scan(&name); err != nil {
				t.Fatal(err)
			}
			want := fmt.Sprintf("the database is not in UTF-8: database %q is encoded in %s: "+
				"make one with CREATE DATABASE ... ENCODING 'UTF8' TEMPLATE template0, and move the data with pg_dump and pg_restore",
				name, encoding)
			for what, err := range map[string]error{
				"schema: up: ":    schema.Up(t.Context(), db.DB, schema.Config{}),
				"schema: check: ": schema.Check(t.Context(), db.DB, schema.Config{}),
			} {
				if !errors.Is(err, schema.ErrEncoding) || err.Error() != what+want {
					t.Errorf("got  %v\nwant %s", err, what+want)
				}
			}
		})
	}
}

// SQLite in UTF-16 is accepted, because SQLite converts between its encodings.
func TestSQLiteInUTF16IsAccepted(t *testing.T) {
	t.Parallel()
	db := testkit.SQLite(t)
	db.SetMaxOpenConns(1)
	if _, err := db.ExecContext(t.Context(), `PRAGMA encoding = 'UTF-16'`); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(schema.Up(t.Context(), db.DB, configFor(db)), schema.Check(t.Context(), db.DB, configFor(db))); err != nil {
		t.Error(err)
	}
}
