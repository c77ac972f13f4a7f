package schema

import (
	"context"
	"database/sql"
	_ "embed"
	"fmt"
)

// byDay is the SQL that converts a plain inbox into an inbox with one partition for
// each day.
//
//go:embed layouts/inbox_by_day.sql
//go:embed layouts/inbox_by_day.sql
var byDay string

// layout returns the layout of the inbox in the database.
func (c Config) layout(ctx context.Context, db querier) (InboxLayout, error) {
	if c.Dialect == SQLite {
		return Plain, nil
	}
	query := fmt.Sprintf(`SELECT EXISTS (SELECT FROM pg_class WHERE oid = to_regclass('%s') AND relkind = 'p')`, c.Table("inbox"))
	var partitioned bool
	if err := db.QueryRowContext(ctx, query).Scan(&partitioned); err != nil {
		return "", fmt.Errorf("look at %s: %w", c.Table("inbox"), err)
	}
	if partitioned {
		return ByDay, nil
	}
	return Plain, nil
}

func (c Config) layoutError(layout InboxLayout) error {
	if layout == ByDay {
		return fmt.Errorf("%w: %s has partitions by day: set Config.Inbox to schema.ByDay", ErrLayout, c.Table("inbox"))
	}
	return fmt.Errorf("%w: %s has no partitions by day: run schema.Up, or apply the end of schema.SQL", ErrLayout, c.Table("inbox"))
}

// layOut converts the inbox to the configured layout. It does not change tables that
// are newer than this code.
func (c Config) layOut(ctx context.Context, conn *sql.Conn, newer bool) error {
	layout, err := c.layout(ctx, conn)
	switch {
	case err != nil:
		return err
	case layout == c.Inbox:
		return nil
	case layout == ByDay:
		return c.layoutError(layout)
	case newer:
		return fmt.Errorf("%w: %s has no partitions by day, and is newer than this code: run schema.Up of the newer code",
			ErrLayout, c.Table("inbox"))
	}
	if _, err := conn.ExecContext(ctx, c.expand(byDay)); err != nil {
		return fmt.Errorf("lay out %s by day: %w", c.Table("inbox"), err)
	}
	return nil
}
