package schema

import (
	"context"
	"database/sql"
	"embed"
	"errors"
	"fmt"
	"hash/fnv"
	"io/fs"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/watermill-once/once/internal/usercode"
)

//go:embed postgres/[0-9]*.sql sqlite/[0-9]*.sql
var files embed.FS

// migration is one numbered step. It is never edited after its release: each later change is a new
// step.
type migration struct {
	version int
	name    string
	text    string

	// compatibleFrom is the oldest version of the code that works with the tables after this step.
	// By default, older code cannot use the tables after a step. If older code can still use them,
	// the step declares this in a separate line:
	//
	//	-- compatible_from: 1
	compatibleFrom int
}

var compatibleFrom = regexp.MustCompile(`(?m)^-- compatible_from: ([1-9][0-9]*)$`)

// All callers get the same slice, so they must not change it. An unknown dialect has no steps.
func migrations(dialect Dialect) []migration {
	switch dialect {
	case PostgreSQL:
		return postgresSteps()
	case SQLite:
		return sqliteSteps()
	default:
		return nil
	}
}

// Each New of this library validates a Config, and needs the steps, so they are read only once.
var (
	postgresSteps = sync.OnceValue(func() []migration { return readMigrations(PostgreSQL) })
	sqliteSteps   = sync.OnceValue(func() []migration { return readMigrations(SQLite) })
)

// readMigrations panics if a file is invalid, because the files are part of the binary.
func readMigrations(dialect Dialect) []migration {
	entries, err := fs.ReadDir(files, string(dialect))
	if err != nil {
		panic("schema: " + err.Error())
	}
	steps := make([]migration, 0, len(entries))
	for _, entry := range entries { // ReadDir sorts by name
		number, name, _ := strings.Cut(strings.TrimSuffix(entry.Name(), ".sql"), "_")
		version, err := strconv.Atoi(number)
		if err != nil || version != len(steps)+1 {
			panic("schema: migration out of sequence: " + entry.Name())
		}
		text, err := fs.ReadFile(files, string(dialect)+"/"+entry.Name())
		if err != nil {
			panic("schema: " + err.Error())
		}
		step := migration{version: version, name: name, text: string(text), compatibleFrom: version}
		if match := compatibleFrom.FindSubmatch(text); match != nil {
			step.compatibleFrom, _ = strconv.Atoi(string(match[1])) // the pattern matches only digits
		}
		if step.compatibleFrom > version {
			panic("schema: migration compatible from a later version: " + entry.Name())
		}
		steps = append(steps, step)
	}
	return steps
}

// Version returns the schema version that this code needs.
func Version() int { return len(migrations(PostgreSQL)) }

// SQL returns the text of all migrations, for your own migration tool. Apply the text
// in one transaction. The text also records the versions, so that [Check] and a later
// [Up] know which migrations were applied. If Config.Inbox or Config.Sent is ByDay, the
// text ends with the conversion of the table. You can also apply this last part to a
// plain table later.
func SQL(config Config) (string, error) {
	text, err := SQLFrom(config, 0)
	if err != nil {
		return "", err
	}
	return text + config.conversions(), nil
}

// SQLFrom returns the text of the migrations after the given version. Use it if your
// own migration tool has applied [SQL] of an earlier release. Apply the text in one
// transaction. Its statements fail if the tables do not have the given version. If the
// given version is the latest one, the text is "". If this code does not know the given
// version, SQLFrom returns an error.
func SQLFrom(config Config, version int) (string, error) {
	if err := config.Validate(); err != nil {
		return "", err
	}
	if version < 0 || version > Version() {
		return "", fmt.Errorf("schema: version %d is unknown: this code knows versions 0 to %d", version, Version())
	}
	config = config.WithDefaults()
	var b strings.Builder
	if version == 0 {
		if config.Dialect == PostgreSQL && config.Schema == "" {
			fmt.Fprintf(&b, refuseSecondSet+";\n\n", config.names())
		}
		b.WriteString(config.expand(createVersions) + ";\n")
	}
	for _, m := range migrations(config.Dialect)[version:] {
		fmt.Fprintf(&b, "\n-- %04d %s\n\n%s\n%s;\n", m.version, m.name, config.expand(m.text), config.record(m))
	}
	return b.String(), nil
}

const createVersions = `CREATE TABLE IF NOT EXISTS {migrations} (version integer PRIMARY KEY, compatible_from integer NOT NULL)`

func (c Config) record(m migration) string {
	table, from := c.Table("migrations"), strconv.Itoa(m.compatibleFrom)
	if m.version > 1 {
		from = fmt.Sprintf("(SELECT %s FROM %s WHERE version = %d)", from, table, m.version-1)
	}
	return fmt.Sprintf(`INSERT INTO %s (version, compatible_from) VALUES (%d, %s)`, table, m.version, from)
}

type versions struct {
	version        int // 0 if no migration was applied
	compatibleFrom int // oldest version of the code that can use the tables
}

func (c Config) current(ctx context.Context, q querier) (v versions, err error) {
	err = q.QueryRowContext(ctx, "SELECT COALESCE(MAX(version), 0), COALESCE(MAX(compatible_from), 0) FROM "+c.Table("migrations")).
		Scan(&v.version, &v.compatibleFrom)
	if err != nil {
		return versions{}, fmt.Errorf("read %s: %w", c.Table("migrations"), err)
	}
	return v, nil
}

// compatible assumes that the tables are not older than this code.
func (v versions) compatible() bool { return v.compatibleFrom <= Version() }

func (v versions) newerError() error {
	return fmt.Errorf("%w: they have version %d, which needs code of version %d or later, but this code has version %d: "+
		"deploy the newer code, or restore a backup from before the migration", ErrNewer, v.version, v.compatibleFrom, Version())
}

// Up migrates the tables to [Version]. Several processes may call it at the same time:
// one process migrates, and the other processes wait, and then have nothing to do. Up
// applies all missing migrations in one transaction, or none of them. Call it as the
// owner of the tables. Other users get PostgreSQL's "permission denied", and should
// call [Check] instead, see docs/roles.md.
//
// Up creates the PostgreSQL schema if it is missing. It does not change tables that are
// newer than this code. If this code cannot use such tables, Up fails with [ErrNewer].
// If Config.Inbox or Config.Sent is ByDay, Up converts a plain inbox or sent log. It
// cannot convert back, and fails with [ErrLayout] instead. It fails with [ErrAmbiguous]
// if Config.Schema is empty and the tables are not in the first schema of the search
// path, because this would create a second, empty set of tables. It fails with
// [ErrDialect] if the database is not of the kind in Config.Dialect, and with
// [ErrEncoding] for a database that does not use UTF-8.
func Up(ctx context.Context, db *sql.DB, config Config) error {
	if err := config.validateWith(db); err != nil {
		return err
	}
	config = config.WithDefaults()

	// SQLite must begin the transaction with the write lock, which with sql.Tx depends on the data
	// source name.
	conn, err := connect(ctx, db)
	if err != nil {
		return fmt.Errorf("schema: connect: %w", usercode.HideDSN(err))
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
	// A stricter isolation level would hide what other processes migrated during the wait for the
	// lock.
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

const busyTimeout = 30 * time.Second

// connect tries again while SQLite is busy. A data source name with journal_mode(WAL) changes a new
// file when it connects. If several processes do this at once, SQLite refuses all but one, whatever
// their busy timeout.
func connect(ctx context.Context, db *sql.DB) (*sql.Conn, error) {
	for began := time.Now(); ; {
		conn, err := db.Conn(ctx)
		if !isBusy(err) || time.Since(began) > busyTimeout {
			return conn, err
		}
		select {
		case <-ctx.Done():
			return nil, errors.Join(ctx.Err(), err)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// This package imports no driver, so it recognizes SQLITE_BUSY by the method of the error.
func isBusy(err error) bool {
	const busy = 5 // the lowest byte, https://www.sqlite.org/rescode.html
	e, ok := errors.AsType[interface {
		error
		Code() int
	}](err)
	return ok && e.Code()&0xff == busy
}

// restore undoes the timeout, because the connection goes back to the caller's pool.
func setBusyTimeout(ctx context.Context, conn *sql.Conn) (restore func(), err error) {
	var before int
	if err := conn.QueryRowContext(ctx, "PRAGMA busy_timeout").Scan(&before); err != nil {
		return nil, err
	}
	if _, err := conn.ExecContext(ctx, fmt.Sprintf("PRAGMA busy_timeout = %d", busyTimeout.Milliseconds())); err != nil {
		return nil, err
	}
	return func() { // restoring fails only if the connection is broken
		_, _ = conn.ExecContext(context.WithoutCancel(ctx), fmt.Sprintf("PRAGMA busy_timeout = %d", before))
	}, nil
}

// prepare takes the lock that makes concurrent callers wait, and creates the table of versions.
// Callers with only IF NOT EXISTS would still collide in PostgreSQL's catalog.
func (c Config) prepare(ctx context.Context, conn *sql.Conn) error {
	if c.Dialect == PostgreSQL {
		lock := fnv.New64a()
		_, _ = lock.Write([]byte("once schema " + c.Prefix)) // without the schema, which the search path of each process determines
		if _, err := conn.ExecContext(ctx, fmt.Sprintf("SELECT pg_advisory_xact_lock(%d)", int64(lock.Sum64()))); err != nil {
			return fmt.Errorf("take the migration lock: %w", err)
		}
		if err := c.createSchema(ctx, conn); err != nil {
			return err
		}
		// CREATE TABLE looks only into the first schema of the search path, but the
		// statements of this library look into all of them.
		found, err := c.find(ctx, conn)
		if err != nil {
			return fmt.Errorf("find the tables: %w", err)
		}
		if err := c.checkPlace(found); err != nil {
			return err
		}
	}
	if _, err := conn.ExecContext(ctx, c.expand(createVersions)); err != nil {
		return fmt.Errorf("create %s: %w", c.Table("migrations"), err)
	}
	return nil
}

// createSchema first looks, because CREATE SCHEMA IF NOT EXISTS needs the right to create schemas
// even if the schema exists.
func (c Config) createSchema(ctx context.Context, conn *sql.Conn) error {
	if c.Schema == "" {
		return nil
	}
	var exists bool
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
