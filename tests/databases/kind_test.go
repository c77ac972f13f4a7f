package databases

import (
	"cmp"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"regexp"
	"testing"

	_ "github.com/go-sql-driver/mysql" // the driver mysql

	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/operate"
	"github.com/watermill-once/once/operate/outbox"
	"github.com/watermill-once/once/schema"
)

func TestMain(m *testing.M) { kit.Main(m) }

func eachDriver(t *testing.T, dsn string, test func(t *testing.T, db *sql.DB)) {
	t.Helper()
	for name, open := range kit.Drivers {
		t.Run(name, func(t *testing.T) {
			db, err := open(dsn)
			kit.OK(t, err)
			t.Cleanup(func() { _ = db.Close() })
			test(t, db)
		})
	}
}

// refuses checks the errors of Up and Check for a database.
func refuses(t *testing.T, db *sql.DB, config schema.Config, is error, says string) {
	t.Helper()
	for what, err := range map[string]error{
		"schema: up: ":    schema.Up(t.Context(), db, config),
		"schema: check: ": schema.Check(t.Context(), db, config),
	} {
		if !errors.Is(err, is) || !regexp.MustCompile("^"+what+is.Error()+": "+says+"$").MatchString(err.Error()) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

func TestPostgreSQLIsRefusedWithTheDialectOfSQLite(t *testing.T) {
	t.Parallel()
	eachDriver(t, kit.Postgres(t).DSN, func(t *testing.T, db *sql.DB) {
		refuses(t, db, schema.Config{Dialect: schema.SQLite}, schema.ErrDialect,
			`Dialect is "sqlite", the database is PostgreSQL [0-9.]+: set Config.Dialect to schema.PostgreSQL`)
		if err := schema.Up(t.Context(), db, schema.Config{}); err != nil {
			t.Errorf("with schema.PostgreSQL: %v", err)
		}
	})
}

func TestSQLiteIsRefusedWithTheDialectOfPostgreSQL(t *testing.T) {
	t.Parallel()
	refuses(t, kit.SQLite(t).DB, schema.Config{}, schema.ErrDialect,
		`Dialect is "postgres", the database is SQLite [0-9.]+: set Config.Dialect to schema.SQLite`)
}

// Up and Check refuse MySQL and MariaDB, because there is no dialect for them. The test needs a
// server of MySQL or MariaDB, at MYSQL_DSN or else at 127.0.0.1:3306. If MYSQL_DSN is set, the
// server must answer. Package schema has the same test with recorded replies of both databases.
func TestMySQLIsRefusedWithEachDialect(t *testing.T) {
	db, err := sql.Open("mysql", cmp.Or(os.Getenv("MYSQL_DSN"), "root@tcp(127.0.0.1:3306)/test"))
	if err != nil {
		t.Fatal("MYSQL_DSN cannot be read")
	}
	t.Cleanup(func() { _ = db.Close() })
	if err := db.PingContext(t.Context()); err != nil {
		kit.WithoutOptional(t, "MYSQL_DSN", fmt.Errorf("MySQL does not answer: %w", err))
	}
	for _, dialect := range []schema.Dialect{schema.PostgreSQL, schema.SQLite} {
		says := `Dialect is "` + string(dialect) + `", the database is (MySQL )?[0-9][^ ]*: there is no dialect for it, use PostgreSQL or SQLite`
		refuses(t, db, schema.Config{Dialect: dialect}, schema.ErrDialect, says)

		// Packages that do not check the tables return the same error. The root package tests all
		// of these packages.
		messages, err := outbox.New(db, operate.Config{Schema: schema.Config{Dialect: dialect}})
		kit.OK(t, err)
		_, err = messages.List(t.Context(), operate.Filter{})
		says = "^outbox: list: schema: check: " + schema.ErrDialect.Error() + ": " + says + "$"
		if !errors.Is(err, schema.ErrDialect) || !regexp.MustCompile(says).MatchString(err.Error()) {
			t.Errorf("list: %v", err)
		}
	}
}

// Trap 86. A connection that declares another encoding than UTF-8 is refused, because PostgreSQL
// would store other characters than the service has sent. The test uses pgx, because lib/pq always
// declares UTF8.
func TestConnectionWithoutUTF8IsRefused(t *testing.T) {
	t.Parallel()
	db, err := sql.Open("pgx", kit.Postgres(t).DSN+"&client_encoding=LATIN1")
	kit.OK(t, err)
	t.Cleanup(func() { _ = db.Close() })
	refuses(t, db, schema.Config{}, schema.ErrEncoding, `client_encoding of the connection to "once_test[a-z0-9_]+" is LATIN1: `+
		`set it to UTF8 in the data source name, or with ALTER ROLE ... SET client_encoding = 'UTF8'`)
}

func TestEncodingAndDurabilityWithEveryDriver(t *testing.T) {
	t.Parallel()
	eachDriver(t, kit.PostgresIn(t, "LATIN1").DSN, func(t *testing.T, db *sql.DB) {
		refuses(t, db, schema.Config{}, schema.ErrEncoding, `database "once_test[a-z0-9_]+" is encoded in LATIN1: `+
			`make one with CREATE DATABASE ... ENCODING 'UTF8' TEMPLATE template0, and move the data with pg_dump and pg_restore`)
		kit.Check(t, schema.Durability(t.Context(), db, schema.Config{}))
		db.SetMaxOpenConns(1) // so that all statements use the session with this setting
		kit.Exec(t, db, `SET synchronous_commit = off`)
		if err := schema.Durability(t.Context(), db, schema.Config{}); !errors.Is(err, schema.ErrNotDurable) {
			t.Error(err)
		}
	})
}
