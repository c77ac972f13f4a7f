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
// one process migrates, and the other processes wait, and then have nothing to do. Up
// applies all missing migrations in one transaction, or none of them. Call it as the
// owner of the tables. Other users get PostgreSQL's "permission denied", and should
// call [Check] instead, see docs/roles.md.
//
// Up creates the PostgreSQL schema if it is missing. It does not change tables that are
// newer than this code. If this code cannot use such tables, Up fails with [ErrNewer].
// If Config.Inbox or Config.Sent is ByDay, Up converts a plain inbox or sent log. It
// cannot convert back, and fails with [ErrLayout] instead. It fails with [ErrDialect]
// if the database is not of the kind in Config.Dialect, and with [ErrEncoding] for a
// database that does not use UTF-8.
func Up(ctx context.Context, db *sql.DB, config Config) error {
	if err := config.validateWith(db); err != nil {
		return err
	}
	config = config.WithDefaults()

	// A dedicated connection is needed, because SQLite must begin the transaction with
	// the write lock. With sql.Tx this would depend on the data source name.
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

// setBusyTimeout makes the connection wait for other writers. The returned function
// restore undoes this, because the connection goes back to the caller's pool.
func setBusyTimeout(ctx context.Context, conn *sql.Conn) (restore func(), err error) {
	var before int
	if err := conn.QueryRowContext(ctx, "PRAGMA busy_timeout").Scan(&before); err != nil {
		return nil, err
	}
	if _, err := conn.ExecContext(ctx, "PRAGMA busy_timeout = 30000"); err != nil {
		return nil, err
	}
	return func() { // restoring fails only if the connection is broken
		_, _ = conn.ExecContext(context.WithoutCancel(ctx), fmt.Sprintf("PRAGMA busy_timeout = %d", before))
	}, nil
}

// prepare takes the lock that makes concurrent callers wait, and creates the table of
// versions. IF NOT EXISTS alone is not enough: callers that create the table at the
// same time would still collide in PostgreSQL's catalog.
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

// createSchema creates the configured schema if it is missing. It first checks whether
// the schema exists, because CREATE SCHEMA IF NOT EXISTS needs the right to create
// schemas even if the schema exists.
func (c Config) createSchema(ctx context.Context, conn *sql.Conn) error {
	if c.Schema == "" {
		return nil
	}
	var exists bool
	// The name was validated, so it contains no quotes.
	query := fmt.Sprintf("SELECT EXISTS (SELECT FROM pg_namespace WHERE nspname = '%s')", c.Schema)
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
