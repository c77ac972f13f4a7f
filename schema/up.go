package schema

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"hash/fnv"

	"github.com/watermill-once/once/internal/dsn"
)

// Up migrates the tables to [Version]. Several processes may call it at the same time:
// one migrates, and the others wait and then find nothing to do. Up applies all missing
// migrations in one transaction, or none. Call it as the owner of the tables. Other
// users get PostgreSQL's "permission denied", and should call [Check] instead, see
// docs/roles.md.
//
// Up creates the PostgreSQL schema if it is missing. It does not change tables that are
// newer than this code, and fails with [ErrNewer] if this code cannot use them. It
// converts a plain inbox or sent log if Config.Inbox or Config.Sent is ByDay. For the
// other direction it fails with [ErrLayout]. It fails with [ErrDialect] for a database of another kind, and with
// [ErrEncoding] for a database that does not use UTF-8.
func Up(ctx context.Context, db *sql.DB, config Config) error {
	if err := config.validateWith(db); err != nil {
		return err
	}
	config = config.WithDefaults()

	// A dedicated connection is needed, because SQLite must begin the transaction with
	// the write lock, and with sql.Tx this depends on the data source name.
	conn, err := db.Conn(ctx)
	if err != nil {
		return fmt.Errorf("schema: connect: %w", dsn.Hide(err))
	}
	defer conn.Close()
	if err := upOn(ctx, conn, config); err != nil {
		return fmt.Errorf("schema: up: %w", err)
	}
	return nil
}

func upOn(ctx context.Context, conn *sql.Conn, config Config) (err error) {
	if err := config.checkDatabase(ctx, conn); err != nil {
		return err
	}
	// After the wait for the lock, the transaction must see the migrations of other
	// processes. A stricter isolation level would hide them.
	begin := "BEGIN ISOLATION LEVEL READ COMMITTED"
	if config.Dialect == SQLite {
		begin = "BEGIN IMMEDIATE"
		restore, err := setBusyTimeout(ctx, conn)
		if err != nil {
			return err
		}
		defer restore()
	}
	if _, err := conn.ExecContext(ctx, begin); err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_, rollback := conn.ExecContext(context.WithoutCancel(ctx), "ROLLBACK")
			err = errors.Join(err, rollback)
		}
	}()

	if err := config.prepare(ctx, conn); err != nil {
		return err
	}
	there, err := config.current(ctx, conn)
	if err != nil {
		return err
	}
	if !there.compatible() {
		return there.newerError()
	}
	steps := migrations(config.Dialect)
	for _, m := range steps[min(there.version, len(steps)):] {
		if _, err := conn.ExecContext(ctx, config.expand(m.text)); err != nil {
			return fmt.Errorf("migration %04d %s: %w", m.version, m.name, err)
		}
		if _, err := conn.ExecContext(ctx, config.record(m)); err != nil {
			return fmt.Errorf("migration %04d %s: %w", m.version, m.name, err)
		}
	}
	if err := config.layOut(ctx, conn, there.version > Version()); err != nil {
		return err
	}
	_, err = conn.ExecContext(ctx, "COMMIT")
	return err
}

// setBusyTimeout makes the connection wait for other writers. restore undoes this,
// because the connection returns to the caller's pool.
func setBusyTimeout(ctx context.Context, conn *sql.Conn) (restore func(), err error) {
	var before int
	if err := conn.QueryRowContext(ctx, "PRAGMA busy_timeout").Scan(&before); err != nil {
		return nil, err
	}
	if _, err := conn.ExecContext(ctx, "PRAGMA busy_timeout = 30000"); err != nil {
		return nil, err
	}
	return func() { // fails only if the connection is broken
		_, _ = conn.ExecContext(context.WithoutCancel(ctx), fmt.Sprintf("PRAGMA busy_timeout = %d", before))
	}, nil
}

// prepare takes the lock that makes concurrent callers wait, and creates the table of
// versions. `IF NOT EXISTS` is not enough, because concurrent callers still collide in
// PostgreSQL's catalogue.
func (c Config) prepare(ctx context.Context, conn *sql.Conn) error {
	if c.Dialect == PostgreSQL {
		lock := fnv.New64a()
		_, _ = lock.Write([]byte("once schema " + c.Table("migrations")))
		if _, err := conn.ExecContext(ctx, fmt.Sprintf("SELECT pg_advisory_xact_lock(%d)", int64(lock.Sum64()))); err != nil {
			return fmt.Errorf("take the migration lock: %w", err)
		}
		if err := c.createSchema(ctx, conn); err != nil {
			return err
		}
	}
	if _, err := conn.ExecContext(ctx, c.expand(createVersions)); err != nil {
		return fmt.Errorf("create %s: %w", c.Table("migrations"), err)
	}
	return nil
}

// createSchema creates the configured schema if it is missing. It checks this first,
// because CREATE SCHEMA IF NOT EXISTS needs the right to create schemas even if the
// schema exists.
func (c Config) createSchema(ctx context.Context, conn *sql.Conn) error {
	if c.Schema == "" {
		return nil
	}
	var exists bool
	query := fmt.Sprintf("SELECT EXISTS (SELECT FROM pg_namespace WHERE nspname = '%s')", c.Schema) // validated: it contains no quotes
	if err := conn.QueryRowContext(ctx, query).Scan(&exists); err != nil {
		return fmt.Errorf("look for schema %q: %w", c.Schema, err)
	}
	if exists {
		return nil
	}
	if _, err := conn.ExecContext(ctx, `CREATE SCHEMA "`+c.Schema+`"`); err != nil {
		return fmt.Errorf("create schema %q: %w", c.Schema, err)
	}
	return nil
}
