package schema

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/watermill-once/once/internal/dsn"
)

var (
	// ErrMissing means that the database does not contain the tables.
	ErrMissing = errors.New("the tables are missing")

	// ErrOutdated means that the tables lack migrations that this code needs.
	ErrOutdated = errors.New("the tables are older than this code")

	// ErrNewer means that a later version of this module has migrated the tables, and that
	// this code cannot use them.
	ErrNewer = errors.New("the tables are newer than this code")

	// ErrLayout means that the inbox or the sent log does not have the layout in
	// Config.Inbox or Config.Sent.
	ErrLayout = errors.New("the table has another layout")
)

// validateWith returns an error that names the invalid fields of c. It also returns an
// error if db is nil.
func (c Config) validateWith(db querier) error {
	if pool, ok := db.(*sql.DB); db == nil || ok && pool == nil {
		return errors.Join(errors.New("schema: db is nil"), c.Validate())
	}
	return c.Validate()
}

// querier is a *sql.DB, a *sql.Conn or a *sql.Tx.
type querier interface {
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

// Check returns nil if this code can use the tables. Otherwise its error says what to
// do, and wraps [ErrMissing], [ErrOutdated], [ErrNewer], [ErrLayout], [ErrDialect],
// [ErrEncoding] or the database's own error. For "permission denied" see docs/roles.md.
// The parameter db is a *sql.DB, a *sql.Conn or a *sql.Tx. Check changes nothing.
//
// Check accepts tables of a later version if their migration declares that code of this
// version can use them, see docs/upgrading.md.
func Check(ctx context.Context, db querier, config Config) error {
	if err := config.validateWith(db); err != nil {
		return err
	}
	config = config.WithDefaults()

	if err := config.checkDatabase(ctx, db); err != nil {
		return fmt.Errorf("schema: check: %w", err)
	}
	exists, err := config.exists(ctx, db)
	if err != nil {
		return fmt.Errorf("schema: check: %w", dsn.Hide(err))
	}
	if !exists {
		return fmt.Errorf("schema: %w: no table %s: run schema.Up, or apply schema.SQL", ErrMissing, config.Table("migrations"))
	}
	there, err := config.current(ctx, db)
	switch {
	case err != nil:
		return fmt.Errorf("schema: check: %w", err)
	case there.version < Version():
		return fmt.Errorf("schema: %w: they have version %d, this code needs %d: run schema.Up, or apply schema.SQLFrom(config, %d)",
			ErrOutdated, there.version, Version(), there.version)
	case !there.compatible():
		return fmt.Errorf("schema: %w", there.newerError())
	}
	switch err := config.checkLayouts(ctx, db); {
	case errors.Is(err, ErrLayout):
		return fmt.Errorf("schema: %w", err)
	case err != nil:
		return fmt.Errorf("schema: check: %w", err)
	}
	return nil
}

// exists reports whether the tables exist. It searches the database's catalog, so that
// a missing table cannot be confused with another error. The names were validated, so
// they contain no quotes.
func (c Config) exists(ctx context.Context, db querier) (bool, error) {
	query := fmt.Sprintf(`SELECT to_regclass('%s') IS NOT NULL`, c.Table("migrations"))
	if c.Dialect == SQLite {
		query = fmt.Sprintf(`SELECT EXISTS (SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name = '%smigrations')`, c.Prefix)
	}
	var exists bool
	err := db.QueryRowContext(ctx, query).Scan(&exists)
	return exists, err
}
