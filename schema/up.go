package schema

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"hash/fnv"

	"github.com/watermill-once/once/internal/dsn"
)

// Up brings the tables to [Version]. It is safe to call from any number of
// processes at once: one works, the others wait for it and find nothing to do.
// All steps that are missing are applied in one transaction, or none is. It is
// for the owner of the tables: others get PostgreSQL's "permission denied", and
// call [Check], see docs/roles.md.
//
// A missing PostgreSQL schema is created. Tables that are newer than this code
// are left alone; if their migration says that this code cannot work with them,
// that is reported as [ErrNewer]. A plain inbox is turned into days if
// Config.Inbox says so; the other way is reported as [ErrLayout]. A database of
// another kind is reported as [ErrDialect], one that is not in UTF-8 as
// [ErrEncoding].
func Up(ctx context.Context, db *sql.DB, config Config) error {
	if err := config.on(db); err != nil {
		return err
	}
	config = config.WithDefaults()

	// A connection of our own, because SQLite must begin with the write lock
	// whatever the data source name says.
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
	if err := config.fits(ctx, conn); err != nil {
		return err
	}
	// Who has waited for the lock is to see what was done meanwhile, whatever the
	// default of the database.
	begin := "BEGIN ISOLATION LEVEL READ COMMITTED"
	if config.Dialect == SQLite {
		begin = "BEGIN IMMEDIATE"
		restore, err := patient(ctx, conn)
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

// patient has the connection wait for others, until restore: it is one of the
// caller's pool, and goes back to it.
func patient(ctx context.Context, conn *sql.Conn) (restore func(), err error) {
	var before int
	if err := conn.QueryRowContext(ctx, "PRAGMA busy_timeout").Scan(&before); err != nil {
		return nil, err
	}
	if _, err := conn.ExecContext(ctx, "PRAGMA busy_timeout = 30000"); err != nil {
		return nil, err
	}
	return func() { // if it fails, the connection is of no use to anybody
		_, _ = conn.ExecContext(context.WithoutCancel(ctx), fmt.Sprintf("PRAGMA busy_timeout = %d", before))
	}, nil
}

// prepare takes the lock that makes concurrent callers wait, and creates what
// the versions are recorded in. `IF NOT EXISTS` alone is no protection: many at
// once still collide in PostgreSQL's catalogue.
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

// createSchema creates the configured schema when it is missing. It looks
// first, because CREATE SCHEMA IF NOT EXISTS wants the right to create one even
// when there is nothing to do.
func (c Config) createSchema(ctx context.Context, conn *sql.Conn) error {
	if c.Schema == "" {
		return nil
	}
	var exists bool
	query := fmt.Sprintf("SELECT EXISTS (SELECT FROM pg_namespace WHERE nspname = '%s')", c.Schema) // validated: no quotes in it
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
