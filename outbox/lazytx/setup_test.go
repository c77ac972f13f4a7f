package lazytx_test

import (
	"database/sql"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/lib/pq"

	"github.com/watermill-once/once/internal/dialect"
	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/outbox/lazytx"
	"github.com/watermill-once/once/schema"
)

func TestMain(m *testing.M) { kit.Main(m) }

// bench contains a pool with one connection, and another pool that can observe that
// connection.
type bench struct {
	*testing.T

	others *sql.DB
	db     *sql.DB
	ours   dialect.Dialect
}

func newBench(t *testing.T) *bench {
	t.Helper()
	database := kit.Postgres(t)
	c, err := pq.NewConnector(database.DSN)
	kit.OK(t, err)
	b := &bench{T: t, others: database.DB, db: sql.OpenDB(lazytx.Connector(c))}
	t.Cleanup(func() { _ = b.db.Close() })
	b.db.SetMaxOpenConns(1)
	b.ours, err = dialect.New(schema.Config{})
	kit.OK(t, err)
	b.exec(b.others, `CREATE TABLE effects (n integer)`)
	b.effect(0)
	return b
}

func (b *bench) exec(on kit.Querier, query string, args ...any) {
	b.Helper()
	kit.Exec(b, on, query, args...)
}

// effect writes n in a transaction of this module. After that, lazytx knows that the
// connection is alive.
func (b *bench) effect(n int) {
	b.Helper()
	kit.OK(b, b.ours.Write(b.Context(), b.db, func(tx *sql.Tx) error {
		_, err := tx.ExecContext(b.Context(), `INSERT INTO effects VALUES ($1)`, n)
		return err
	}))
}

func (b *bench) expect(want ...string) {
	b.Helper()
	got := kit.One[string](b, b.others, `SELECT string_agg(n::text, ' ' ORDER BY n) FROM effects`)
	if got != strings.Join(want, " ") {
		b.Fatalf("the effects are %s, want %v", got, want)
	}
}

// lazy begins a transaction whose first statement will be a text without arguments.
func (b *bench) lazy() (tx *sql.Tx, release func()) {
	b.Helper()
	tx, release, err := dialect.Begin(dialect.StartWithText(b.Context()), b.db, nil)
	kit.OK(b, err)
	b.Cleanup(release)
	return tx, release
}

// server returns the state of the pool's connection as the server reports it, and the
// latest query of the connection.
func (b *bench) server() (state, query string) {
	b.Helper()
	kit.OK(b, b.others.QueryRowContext(b.Context(), `
		SELECT state, query FROM pg_stat_activity
		WHERE datname = current_database() AND backend_type = 'client backend' AND pid <> pg_backend_pid()`).Scan(&state, &query))
	return state, query
}

func (b *bench) stateIs(want string) {
	b.Helper()
	if state, query := b.server(); state != want {
		b.Fatalf("the connection is %s after %q, want %s", state, query, want)
	}
}

const (
	idle          = "idle"
	inTransaction = "idle in transaction"
	failed        = "idle in transaction (aborted)"
)

// setAlive sets the time of the server's last answer on the pool's connection.
func (b *bench) setAlive(at time.Time) {
	b.Helper()
	pooled, err := b.db.Conn(b.Context())
	if err == nil {
		err = errors.Join(pooled.Raw(func(c any) error {
			return lazytx.SetAlive(c, at)
		}), pooled.Close())
	}
	kit.OK(b, err)
}
