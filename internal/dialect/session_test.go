package dialect_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/lib/pq"

	"github.com/watermill-once/once/internal/dialect"
	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/outbox/lazytx"
	"github.com/watermill-once/once/schema"
)

// A function of the user changes the search path and the role of the only connection for
// longer than its transaction. All later work of this module still uses its own tables,
// with the rights of the pool's user.
func TestSettingsOfAFunctionDoNotMisleadLaterWork(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"pq", "pgx", "pq+lazytx", "pgx+lazytx"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := openWith(t, name)
			role := "once_test_" + uuid.NewString()[24:]
			ctx := context.WithoutCancel(t.Context())
			exec(t, db, `CREATE SCHEMA other; CREATE ROLE `+role+`; GRANT USAGE ON SCHEMA other TO `+role)
			t.Cleanup(func() { _, _ = db.ExecContext(ctx, `RESET ROLE; DROP OWNED BY `+role+`; DROP ROLE `+role) })
			kit.OK(t, schema.Up(ctx, db.DB, schema.Config{Schema: "other"}))
			d := kit.Dialect(t, schema.Config{})
			reader := d.Reader(db.DB)
			insert := d.SQL(`INSERT INTO {inbox} (message_id, consumer, digest) VALUES ('m1', 'c', '')`)
			count := `SELECT COUNT(*) FROM {inbox} WHERE consumer = $1`

			for n := range 2 { // the reader has used its query before the second change
				kit.OK(t, d.InTx(ctx, db.DB, func(tx *sql.Tx) error {
					_, err := tx.ExecContext(ctx, `SET search_path = other; SET ROLE `+role)
					return err
				}))
				if n == 0 {
					if err := d.Write(ctx, db.DB, func(tx *sql.Tx) error { _, err := tx.ExecContext(ctx, insert); return err }); err != nil {
						t.Fatalf("write: %v", err)
					}
				}
				var rows int
				if err := d.Read(ctx, db.DB, func(tx *sql.Tx) error {
					return tx.QueryRowContext(ctx, d.SQL(count), "c").Scan(&rows)
				}); err != nil || rows != 1 {
					t.Errorf("read: %d rows, %v", rows, err)
				}
				exec(t, db, `RESET ROLE`) // outside of a transaction, a role cannot be restored
				err := reader.Read(ctx, d.Statement("", count), []any{"c"}, func(found *sql.Rows) error {
					found.Next()
					return found.Scan(&rows)
				})
				if reader.Usable() && (err != nil || rows != 1) {
					t.Errorf("reader: %d rows, %v", rows, err)
				}
			}
		})
	}
}

// A role that stays on a connection has no right to the tables. After the error, the
// connection does not go back to the pool.
func TestConnectionWhoseRoleHasNoRightsIsClosed(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"pq", "pgx", "pq+lazytx", "pgx+lazytx"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := openWith(t, name)
			role := "once_test_" + uuid.NewString()[24:]
			ctx := context.WithoutCancel(t.Context())
			exec(t, db, `CREATE ROLE `+role)
			t.Cleanup(func() { _, _ = db.ExecContext(ctx, `RESET ROLE; DROP ROLE `+role) })
			d := kit.Dialect(t, schema.Config{})
			execute := func(statement string) error {
				return d.InTx(ctx, db.DB, func(tx *sql.Tx) error { _, err := tx.ExecContext(ctx, statement); return err })
			}
			kit.OK(t, execute(`SET ROLE `+role))
			for n, want := range []string{"42501", ""} {
				if err := execute(`DELETE FROM once_inbox`); dialect.State(err) != want {
					t.Errorf("call %d: %v", n, err)
				}
			}
		})
	}
}

// openWith opens a new database with tables, with the given driver and one connection.
func openWith(t *testing.T, name string) kit.Database {
	t.Helper()
	name, lazy := strings.CutSuffix(name, "+lazytx")
	dsn := kit.Postgres(t).DSN
	var connector driver.Connector
	connector, err := pq.NewConnector(dsn)
	if name == "pgx" {
		var config *pgx.ConnConfig
		if config, err = pgx.ParseConfig(dsn); err == nil {
			connector = stdlib.GetConnector(*config)
		}
	}
	kit.OK(t, err)
	if lazy {
		connector = lazytx.Connector(connector)
	}
	db := sql.OpenDB(connector)
	t.Cleanup(func() { _ = db.Close() })
	db.SetMaxOpenConns(1)
	kit.OK(t, schema.Up(t.Context(), db, schema.Config{}))
	return kit.Database{DB: db}
}

// Trap 27. A connection to a replica is closed. Otherwise the pool would use the
// connection again, and every write would fail. With most drivers, BEGIN succeeds on a
// replica, and only the first write fails. Nor does the connection stay in a pgxpool.
func TestTrap27ConnectionToReplicaIsClosed(t *testing.T) {
	shared := kit.Postgres(t)
	exec(t, shared, `CREATE TABLE work (n integer)`)
	config, err := pgxpool.ParseConfig(shared.DSN)
	kit.OK(t, err)
	config.MaxConns = 1
	for name, open := range map[string]func(pool *pgxpool.Pool) *sql.DB{
		"without a pgxpool":    func(*pgxpool.Pool) *sql.DB { return shared.DB },
		"pgxpool":              func(pool *pgxpool.Pool) *sql.DB { return stdlib.OpenDBFromPool(pool) },
		"pgxpool, with lazytx": func(pool *pgxpool.Pool) *sql.DB { return sql.OpenDB(lazytx.Connector(stdlib.GetPoolConnector(pool))) },
	} {
		t.Run(name, func(t *testing.T) {
			pool, err := pgxpool.NewWithConfig(t.Context(), config)
			kit.OK(t, err)
			defer pool.Close()
			db := open(pool)
			if db != shared.DB {
				defer db.Close()
			}
			db.SetMaxOpenConns(1)
			closesConnectionToReplica(t, db)
		})
	}
}

func closesConnectionToReplica(t *testing.T, db *sql.DB) {
	t.Helper()
	connection := func() (n int) {
		t.Helper()
		kit.OK(t, db.QueryRowContext(t.Context(), `SELECT pg_backend_pid()`).Scan(&n))
		return n
	}
	for state, c := range map[string]struct {
		query string
		kept  bool
	}{
		"25006": {`SET TRANSACTION READ ONLY; INSERT INTO work VALUES (1)`, false},
		"42P01": {`INSERT INTO nowhere VALUES (1)`, true},
	} {
		d := kit.Dialect(t, schema.Config{})
		for method, run := range map[string]func(context.Context, *sql.DB, func(tx *sql.Tx) error) error{
			"Write": d.Write, "Read": d.Read, "InTx": d.InTx,
		} {
			before := connection()
			err := run(t.Context(), db, func(tx *sql.Tx) error {
				_, err := tx.ExecContext(t.Context(), c.query)
				return err
			})
			if got := dialect.State(err); got != state {
				t.Fatalf("%s: got %v, want %s", method, err, state)
			}
			if kept := connection() == before; kept != c.kept {
				t.Errorf("%s: after %s: connection kept is %v", method, state, kept)
			}
		}
	}
}

// Trap 27. lib/pq's BEGIN with READ WRITE fails on a replica, and the connection is
// closed then, too.
func TestTrap27ConnectionToReplicaIsClosedAfterBegin(t *testing.T) {
	server := &replica{}
	db := sql.OpenDB(server)
	defer db.Close()
	for want := range 3 {
		_, _, err := dialect.Begin(t.Context(), db, nil)
		if dialect.State(err) != "25006" {
			t.Fatalf("got %v, want the error of a write on a replica", err)
		}
		if server.connections != want+1 {
			t.Fatalf("%d connections were made, want %d", server.connections, want+1)
		}
	}
}

// replica simulates a server that refuses BEGIN with READ WRITE.
type replica struct{ connections int }

func (r *replica) Connect(context.Context) (driver.Conn, error) {
	r.connections++
	return replicaConn{}, nil
}

func (*replica) Driver() driver.Driver { return nil }

type replicaConn struct{}

func (replicaConn) Prepare(string) (driver.Stmt, error) { return nil, errors.ErrUnsupported }
func (replicaConn) Close() error                        { return nil }
func (replicaConn) Begin() (driver.Tx, error)           { return nil, notOnAReplicaError{} }

type notOnAReplicaError struct{}

func (notOnAReplicaError) Error() string {
	return "cannot set transaction read-write mode during recovery"
}
func (notOnAReplicaError) SQLState() string { return "0A000" }

// PostgreSQL does not compile the queries of Look, and may compile later queries.
func TestQueriesOfLookAreNotCompiled(t *testing.T) {
	t.Parallel()
	db := kit.Postgres(t)
	db.SetMaxOpenConns(1)
	d := kit.Dialect(t, schema.Config{})
	jit := func(read func(ctx context.Context, db *sql.DB, work func(tx *sql.Tx) error) error) (value string) {
		t.Helper()
		kit.OK(t, read(t.Context(), db.DB, func(tx *sql.Tx) error {
			return tx.QueryRowContext(t.Context(), `SHOW jit`).Scan(&value)
		}))
		return value
	}
	usual := jit(d.Read)
	if got := jit(d.Look); got != "off" {
		t.Errorf("jit is %s in Look, want off", got)
	}
	if got := jit(d.Read); got != usual {
		t.Errorf("jit is %s after Look, want %s", got, usual)
	}
}
