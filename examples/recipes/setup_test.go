package recipes

import (
	"context"
	"database/sql"
	"net/url"
	"os"
	"strings"
	"testing"

	_ "github.com/jackc/pgx/v5/stdlib"
	_ "github.com/lib/pq"
	"go.uber.org/goleak"

	"github.com/watermill-once/once/outbox"
	"github.com/watermill-once/once/schema"
)

func TestMain(m *testing.M) {
	// GORM with PrepareStmt starts a goroutine that never ends.
	goleak.VerifyTestMain(m, goleak.IgnoreTopFunction("gorm.io/gorm/internal/lru.NewLRU[...].func1"))
}

// eachDriver calls test with an empty database for each driver. The drivers use one new
// database in turn, because creating a database with its tables takes longer than the test.
// The database has the tables of the outbox, and a table of orders. It is on the server that
// PG_DSN names.
func eachDriver(t *testing.T, test func(t *testing.T, db *sql.DB)) {
	t.Helper()
	dsn := newDatabase(t)
	for _, driver := range []string{"postgres", "pgx"} {
		t.Run(driver, func(t *testing.T) {
			db := open(t, driver, dsn)
			execute(t, db, `TRUNCATE orders, once_outbox`)
			test(t, db)
		})
	}
}

// newDatabase creates a database for the test, and returns its DSN.
func newDatabase(t *testing.T) string {
	t.Helper()
	server := os.Getenv("PG_DSN")
	if server == "" {
		t.Fatal("PG_DSN is empty: set it to the postgres:// URL of a server where the test may create a database")
	}
	name := "recipes_" + strings.ReplaceAll(outbox.NewID(), "-", "")
	execute(t, open(t, "postgres", server), `CREATE DATABASE `+name)
	t.Cleanup(func() { execute(t, open(t, "postgres", server), `DROP DATABASE `+name) })
	address, err := url.Parse(server)
	if err != nil {
		t.Fatal(err)
	}
	address.Path = name
	db := open(t, "postgres", address.String())
	if err := schema.Up(t.Context(), db, schema.Config{}); err != nil {
		t.Fatal(err)
	}
	execute(t, db, `CREATE TABLE orders (id text PRIMARY KEY, total bigint NOT NULL)`)
	return address.String()
}

func open(t *testing.T, driver, dsn string) *sql.DB {
	t.Helper()
	db, err := sql.Open(driver, dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Fatal(err)
		}
	})
	return db
}

func execute(t *testing.T, db *sql.DB, query string) {
	t.Helper()
	if _, err := db.ExecContext(context.WithoutCancel(t.Context()), query); err != nil {
		t.Fatal(err)
	}
}

// stored returns how many orders and how many events there are.
func stored(t *testing.T, db *sql.DB) (orders, events int) {
	t.Helper()
	err := db.QueryRowContext(t.Context(),
		`SELECT (SELECT COUNT(*) FROM orders), (SELECT COUNT(*) FROM once_outbox WHERE topic = 'orders.placed')`).Scan(&orders, &events)
	if err != nil {
		t.Fatal(err)
	}
	return orders, events
}
