package schema

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/watermill-once/once/internal/dsn"
)

var (
	// ErrMissing says that the tables were never created.
	ErrMissing = errors.New("the tables are missing")

	// ErrOutdated says that migrations of this code have not been applied.
	ErrOutdated = errors.New("the tables are older than this code")

	// ErrNewer says that a later version of this module has migrated the
	// database, to what this code cannot work with.
	ErrNewer = errors.New("the tables are newer than this code")

	// ErrLayout says that the inbox does not lie in the database as
	// Config.Inbox says.
	ErrLayout = errors.New("the inbox is laid out in another way")
)

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

// Check reports whether this code works with the tables: nil, or an error that
// says what to do and is one of [ErrMissing], [ErrOutdated], [ErrNewer],
// [ErrLayout], [ErrDialect] and [ErrEncoding], or the database's own error; when
// that is "permission denied", docs/roles.md tells what is missing. db is a
// *sql.DB, a *sql.Conn or a *sql.Tx. It changes nothing.
//
// Tables of a later version are accepted if the migration that made them says
// that code of this version can go on, see docs/upgrading.md.
func Check(ctx context.Context, db querier, config Config) error {
	if err := config.on(db); err != nil {
		return err
	}
	config = config.WithDefaults()

	if err := config.fits(ctx, db); err != nil {
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
	switch layout, err := config.layout(ctx, db); {
	case err != nil:
		return fmt.Errorf("schema: check: %w", err)
	case layout != config.Inbox:
		return fmt.Errorf("schema: %w", config.layoutError(layout))
	}
	return nil
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
