package schema

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"

	"github.com/watermill-once/once/internal/dsn"
)

var (
	// ErrMissing says that the tables were never created.
	ErrMissing = errors.New("the tables are missing")

	// ErrOutdated says that migrations of this code have not been applied.
	ErrOutdated = errors.New("the tables are older than this code")

	// ErrNewer says that a later version of this module has migrated the
	// database.
	ErrNewer = errors.New("the tables are newer than this code")

	// ErrLayout says that the inbox does not lie in the database as
	// Config.Inbox says.
	ErrLayout = errors.New("the inbox is laid out in another way")

	// ErrDialect says that the database is not of the kind that Config.Dialect
	// says.
	ErrDialect = errors.New("the database is of another kind than Dialect says")
)

// told marks what only the other kind of database answers to the first
// statement that it is given.
func (c Config) told(err error) error {
	foreign := []string{"no such function", `near "ISOLATION"`}
	if c.Dialect == SQLite {
		foreign = []string{"PRAGMA", "sqlite_schema"}
	}
	for _, word := range foreign {
		if strings.Contains(err.Error(), word) {
			return fmt.Errorf("%w (%q): %w", ErrDialect, c.Dialect, err)
		}
	}
	return err
}

// on validates what is to be done, and where.
func (c Config) on(db querier) error {
	if pool, ok := db.(*sql.DB); db == nil || ok && pool == nil {
		return errors.Join(errors.New("schema: db is nil"), c.Validate())
	}
	return c.Validate()
}

// querier is what [Check] needs of a *sql.DB, *sql.Conn or *sql.Tx.
type querier interface {
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

// Check reports whether the tables have the version that this code works with:
// nil, or an error that says what to do and is one of [ErrMissing],
// [ErrOutdated], [ErrNewer], [ErrLayout] and [ErrDialect], or the database's own
// error; when that is "permission denied", docs/roles.md tells what is missing.
// db is a *sql.DB, a *sql.Conn or a *sql.Tx. It changes nothing.
func Check(ctx context.Context, db querier, config Config) error {
	if err := config.on(db); err != nil {
		return err
	}
	config = config.WithDefaults()

	exists, err := config.exists(ctx, db)
	if err != nil {
		return fmt.Errorf("schema: check: %w", config.told(dsn.Hide(err)))
	}
	if !exists {
		return fmt.Errorf("schema: %w: no table %s: run schema.Up, or apply schema.SQL", ErrMissing, config.Table("migrations"))
	}
	current, err := config.current(ctx, db)
	switch {
	case err != nil:
		return fmt.Errorf("schema: check: %w", err)
	case current < Version():
		return fmt.Errorf("schema: %w: version %d of %d: run schema.Up, or apply the rest of schema.SQL",
			ErrOutdated, current, Version())
	case current > Version():
		return fmt.Errorf("schema: %w", newerError(current))
	}
	switch layout, err := config.layout(ctx, db); {
	case err != nil:
		return fmt.Errorf("schema: check: %w", err)
	case layout != config.Inbox:
		return fmt.Errorf("schema: %w", config.layoutError(layout))
	}
	return nil
}

func newerError(current int) error {
	return fmt.Errorf("%w: version %d, this code knows up to %d: deploy the newer code", ErrNewer, current, Version())
}

// exists looks in the catalogue, so that a missing table is not confused with
// any other error of a query. Names are validated: no quotes in them.
func (c Config) exists(ctx context.Context, db querier) (bool, error) {
	query := fmt.Sprintf(`SELECT to_regclass('%s') IS NOT NULL`, c.Table("migrations"))
	if c.Dialect == SQLite {
		query = fmt.Sprintf(`SELECT EXISTS (SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name = '%smigrations')`, c.Prefix)
	}
	var exists bool
	err := db.QueryRowContext(ctx, query).Scan(&exists)
	return exists, err
}
