package kit

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/lib/pq"
	_ "modernc.org/sqlite" // the driver "sqlite"

	"github.com/watermill-once/once/internal/dialect"
	"github.com/watermill-once/once/outbox/lazytx"
)

// Database is an empty database of one test. After the test it is emptied for another
// test, or dropped.
type Database struct {
	*sql.DB

	// DSN is the data source name, for the driver that is named in Dialect.
	DSN string

	// Dialect is "postgres" or "sqlite".
	Dialect string
}

// EachDatabase runs a test with each kind of database. The subtests are named postgres
// and sqlite.
func EachDatabase(t *testing.T, test func(t *testing.T, db Database)) {
	t.Helper()
	eachDatabase(t, Postgres, test)
}

// EachEmptyDatabase is like [EachDatabase], but the databases have no tables, even if
// the package uses [MainWithTables].
func EachEmptyDatabase(t *testing.T, test func(t *testing.T, db Database)) {
	t.Helper()
	eachDatabase(t, EmptyPostgres, test)
}

func eachDatabase(t *testing.T, postgres func(testing.TB) Database, test func(t *testing.T, db Database)) {
	t.Helper()
	t.Run("postgres", func(t *testing.T) { test(t, postgres(t)) })
	t.Run("sqlite", func(t *testing.T) { test(t, SQLite(t)) })
}

// maxOpen limits the connections of a test to a shared server. By default a server
// accepts 100.
const maxOpen = 30

// maxIdle is how many idle connections stay open. A new connection is slow, because the
// server starts a process for it.
const maxIdle = 10

// Postgres returns a new database on a shared server. Its pool opens at most 30
// connections. Use [PrivatePostgres] for a server that the test may kill.
func Postgres(t testing.TB) Database {
	t.Helper()
	server, err := postgresServer()
	return newDatabase(t, server, err, withTables)
}

// EmptyPostgres is like [Postgres], but the database has no tables, even if the package
// uses [MainWithTables]. Use it to count the rows or pages that a query reads. A reused
// database still has the planner's statistics of an earlier test, which could change
// the plan of the query.
func EmptyPostgres(t testing.TB) Database {
	t.Helper()
	server, err := postgresServer()
	return newDatabase(t, server, err, false)
}

// PostgresIn is like [EmptyPostgres] with another encoding, for example "LATIN1" or
// "SQL_ASCII".
func PostgresIn(t testing.TB, encoding string) Database {
	t.Helper()
	server, err := postgresServer()
	if err != nil {
		Without(t, err)
	}
	name := uniqueName(usedPrefix, "_")
	err = server.create(t.Context(), name, " LC_COLLATE 'C' LC_CTYPE 'C' ENCODING '"+encoding+"'")
	return openDatabase(t, server, name, err, server.drop)
}

func newDatabase(t testing.TB, server *postgres, err error, tables bool) Database {
	t.Helper()
	if err != nil {
		Without(t, err)
	}
	if !tables {
		name, err := server.take(t.Context())
		return openDatabase(t, server, name, err, server.give)
	}
	db, err := server.takePrepared(t.Context())
	return openDatabase(t, server, db.name, err, func(ctx context.Context, _ string) error { return server.givePrepared(ctx, db) })
}

// openDatabase opens a database. err is the error of the attempt to
// create the database, or nil. After the test, openDatabase calls the function end,
// which empties or drops the database.
func openDatabase(t testing.TB, server *postgres, name string, err error, end func(ctx context.Context, name string) error) Database {
	t.Helper()
	if err != nil {
		t.Fatalf("kit: create database %s: %v", name, err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), whenBusy)
		defer cancel()
		if err := end(ctx, name); err != nil {
			t.Errorf("kit: empty or drop database %s: %v", name, err)
		}
	})

	dsn, kept := withDatabase(server.dsn, name), server.sessionsOf(name)
	db, err := openPostgres(dsn, kept)
	if err != nil {
		t.Fatal(err)
	}
	db.SetMaxOpenConns(maxOpen)
	db.SetMaxIdleConns(maxIdle)
	db.SetConnMaxIdleTime(10 * time.Second)
	t.Cleanup(func() { _ = kept.keep(db.Close) })
	return Database{DB: db, DSN: dsn, Dialect: "postgres"}
}

// openPostgres is like sql.Open, but its errors do not contain the password. It uses the
// driver of [Connector]. Unless from is nil, it may use sessions of an earlier test.
func openPostgres(dsn string, from *sessions) (*sql.DB, error) {
	connector, err := connect(dsn, from)
	if err != nil {
		return nil, err
	}
	return sql.OpenDB(patient{connector}), nil
}

// Connector returns a connector of the driver that the environment variable
// ONCE_TEST_DRIVER names: "pq" (the default), "pgx", "pq+lazytx" or "pgx+lazytx". Its
// errors do not contain the password.
func Connector(dsn string) (driver.Connector, error) { return connect(dsn, nil) }

func connect(dsn string, from *sessions) (connector driver.Connector, err error) {
	name, lazy := strings.CutSuffix(os.Getenv("ONCE_TEST_DRIVER"), "+lazytx")
	switch name {
	case "", "pq":
		var c *pq.Connector
		if c, err = pq.NewConnector(dsn); err == nil && from != nil {
			c.Dialer(DialFunc(from.dial))
		}
		connector = c
	case "pgx":
		var config *pgx.ConnConfig
		if config, err = pgx.ParseConfig(dsn); err == nil {
			if from != nil {
				config.DialFunc = from.dial
			}
			connector = stdlib.GetConnector(*config)
		}
	default:
		return nil, fmt.Errorf("kit: ONCE_TEST_DRIVER is %q, not pq or pgx, alone or with +lazytx", os.Getenv("ONCE_TEST_DRIVER"))
	}
	if err != nil {
		return nil, errors.New("kit: the DSN of PostgreSQL is invalid")
	}
	if lazy {
		connector = lazytx.Connector(connector)
	}
	return connector, nil
}

// Drivers contains functions that open a PostgreSQL database, one for each supported driver.
var Drivers = map[string]func(dsn string) (*sql.DB, error){
	"libpq": func(dsn string) (*sql.DB, error) { return sql.Open("postgres", dsn) },
	"pgx":   func(dsn string) (*sql.DB, error) { return sql.Open("pgx", dsn) },
	"lazytx": func(dsn string) (*sql.DB, error) {
		connector, err := pq.NewConnector(dsn)
		if err != nil {
			return nil, err
		}
		return sql.OpenDB(lazytx.Connector(connector)), nil
	},
	"pgx with lazytx": func(dsn string) (*sql.DB, error) {
		config, err := pgx.ParseConfig(dsn)
		if err != nil {
			return nil, err
		}
		return sql.OpenDB(lazytx.Connector(stdlib.GetConnector(*config))), nil
	},
}

// patient is a connector that waits while the server has no connection left, because
// tests that run at the same time share the server's connections.
type patient struct{ driver.Connector }

// Patient makes connections of c wait while the server has none left.
func Patient(c driver.Connector) driver.Connector { return patient{c} }

// Connect repeats a failed attempt for up to a minute.
func (p patient) Connect(ctx context.Context) (driver.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for {
		conn, err := p.Connector.Connect(ctx)
		if dialect.State(err) != tooManyConnections {
			return conn, err
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
			return nil, err
		}
	}
}

// withDatabase returns dsn with another database. dsn is a URL or a list
// of key=value pairs.
func withDatabase(dsn, name string) string {
	if parsed, err := url.Parse(dsn); err == nil && strings.HasPrefix(parsed.Scheme, "postgres") {
		parsed.Path = "/" + name
		return parsed.String()
	}
	return fmt.Sprintf("%s dbname=%s", dsn, name) // if dbname is given twice, the last value counts
}

// SQLite returns a new database in a file. Its transactions take the write lock when
// they begin. A transaction waits for the lock for up to ten seconds.
func SQLite(t testing.TB) Database {
	t.Helper()
	dsn := (&url.URL{
		Scheme: "file",
		Path:   filepath.Join(t.TempDir(), "test.db"),
		RawQuery: "_txlock=immediate&_pragma=busy_timeout(10000)" +
			"&_pragma=journal_mode(WAL)&_pragma=synchronous(NORMAL)&_pragma=foreign_keys(ON)",
	}).String()
	db, err := sql.Open("sqlite", dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Errorf("close %s: %v", dsn, err)
		}
	})
	return Database{DB: db, DSN: dsn, Dialect: "sqlite"}
}

// MariaDB returns a fake MariaDB database. It reports a version of MariaDB, and refuses
// every other statement, as MariaDB refuses the SQL of other databases. A test with a
// real MariaDB is in tests/databases.
func MariaDB(t testing.TB) *sql.DB {
	t.Helper()
	db := sql.OpenDB(mariadb{})
	t.Cleanup(func() { _ = db.Close() })
	return db
}

type mariadb struct{}

// errMariaDBSyntax has the text of the error of github.com/go-sql-driver/mysql.
var errMariaDBSyntax = errors.New(
	"Error 1064 (42000): You have an error in your SQL syntax; check the manual that corresponds to " +
		"your MariaDB server version for the right syntax to use near '$1' at line 1")

func (m mariadb) Connect(context.Context) (driver.Conn, error)                 { return m, nil }
func (m mariadb) Driver() driver.Driver                                        { return nil }
func (m mariadb) Prepare(string) (driver.Stmt, error)                          { return nil, errMariaDBSyntax }
func (m mariadb) Begin() (driver.Tx, error)                                    { return m, nil }
func (m mariadb) BeginTx(context.Context, driver.TxOptions) (driver.Tx, error) { return m, nil }
func (m mariadb) Commit() error                                                { return nil }
func (m mariadb) Rollback() error                                              { return nil }
func (m mariadb) Close() error                                                 { return nil }
func (m mariadb) ExecContext(context.Context, string, []driver.NamedValue) (driver.Result, error) {
	return nil, errMariaDBSyntax
}

func (m mariadb) QueryContext(_ context.Context, query string, _ []driver.NamedValue) (driver.Rows, error) {
	if query != "SELECT version()" {
		return nil, errMariaDBSyntax
	}
	return &mariadbVersion{}, nil
}

type mariadbVersion struct{ read bool }

func (v *mariadbVersion) Columns() []string { return []string{"version()"} }
func (v *mariadbVersion) Close() error      { return nil }

func (v *mariadbVersion) Next(to []driver.Value) error {
	if v.read {
		return io.EOF
	}
	to[0], v.read = "10.11.19-MariaDB-0+deb12u1", true
	return nil
}
