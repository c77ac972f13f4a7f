package schema

import (
	"context"
	"database/sql"
	_ "embed"
	"fmt"
	"strings"
)

// inboxByDay and sentByDay contain SQL statements. Each of them converts a plain table
// into a table with one partition for each day.
//
//go:embed layouts/inbox_by_day.sql
var inboxByDay string

//go:embed layouts/sent_by_day.sql
var sentByDay string

type laidOut struct {
	table, what, field string
	want               Layout // "" if any layout is accepted
	convert            string
}

func (c Config) laidOut() []laidOut {
	return []laidOut{
		{"inbox", "the inbox", "Inbox", c.Inbox, inboxByDay},
		{"outbox_sent", "the sent log", "Sent", c.Sent, sentByDay},
	}
}

func (c Config) layout(ctx context.Context, db querier, table string) (Layout, error) {
	if c.Dialect == SQLite {
		return Plain, nil
	}
	query := fmt.Sprintf(`SELECT EXISTS (SELECT FROM pg_class WHERE oid = to_regclass('%s') AND relkind = 'p')`, c.Table(table))
	var partitioned bool
	if err := db.QueryRowContext(ctx, query).Scan(&partitioned); err != nil {
		return "", fmt.Errorf("look at %s: %w", c.Table(table), err)
	}
	if partitioned {
		return ByDay, nil
	}
	return Plain, nil
}

func (c Config) checkLayouts(ctx context.Context, db querier) error {
	for _, t := range c.laidOut() {
		switch layout, err := c.layout(ctx, db, t.table); {
		case err != nil:
			return err
		case t.want != "" && layout != t.want:
			return c.layoutError(t, layout)
		}
	}
	return nil
}

func (c Config) layoutError(t laidOut, has Layout) error {
	e := &LayoutError{Field: t.field, Has: has}
	if has == ByDay {
		e.text = fmt.Sprintf("%s has partitions by day: set Config.%s to schema.ByDay", c.Table(t.table), t.field)
	} else {
		e.text = c.Table(t.table) + " has no partitions by day: run schema.Up, or apply the end of schema.SQL"
	}
	return e
}

// layOut does not change tables that are newer than this code.
func (c Config) layOut(ctx context.Context, conn *sql.Conn, newer bool) error {
	for _, t := range c.laidOut() {
		layout, err := c.layout(ctx, conn, t.table)
		switch {
		case err != nil:
			return err
		case t.want == "" || layout == t.want:
			continue
		case layout == ByDay:
			return c.layoutError(t, layout)
		case newer:
			return &LayoutError{
				t.field, layout,
				c.Table(t.table) + " has no partitions by day, and is newer than this code: run schema.Up of the newer code",
			}
		}
		if _, err := conn.ExecContext(ctx, c.expand(t.convert)); err != nil {
			return fmt.Errorf("lay out %s by day: %w", c.Table(t.table), err)
		}
	}
	return nil
}

func (c Config) conversions() (text string) {
	for _, t := range c.laidOut() {
		if t.want == ByDay {
			text += "\n-- " + strings.ToUpper(t.what[:1]) + t.what[1:] + " by day\n\n" + c.expand(t.convert)
		}
	}
	return text
}
