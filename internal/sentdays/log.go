package sentdays

import (
	"context"
	"database/sql"
	"fmt"
	"time"

	"github.com/watermill-once/once/internal/dialect"
)

// partition is a partition of the sent log.
type partition struct {
	name    string // quoted name, with the schema
	from    time.Time
	until   time.Time
	expired bool
	rest    bool // whether this is the default partition
}

// log is the sent log of a database.
type log struct {
	schema string
	owner  bool
	today  time.Time
	parts  []partition
}

// has reports whether a partition, other than the default partition, contains the day
// that starts at begin.
func (l *log) has(begin time.Time) bool {
	for _, p := range l.parts {
		if !p.rest && !p.from.After(begin) && !p.until.Before(begin.AddDate(0, 0, 1)) {
			return true
		}
	}
	return false
}

// look returns the sent log with its partitions, or nil if the log is a plain table. It
// recognizes partitions by their bounds, not by their names.
func look(ctx context.Context, db *sql.DB, d dialect.Dialect, keep time.Duration) (*log, error) {
	var l *log
	err := d.Read(ctx, db, func(tx *sql.Tx) error {
		l = nil
		return dialect.EachRow(ctx, tx, func(scan func(dest ...any) error) error {
			var (
				p                  partition
				schema             string
				owner              bool
				today, from, until int64
			)
			if err := scan(&schema, &owner, &today, &p.name, &p.rest, &from, &until, &p.expired); err != nil {
				return err
			}
			if l == nil {
				l = &log{schema: schema, owner: owner, today: time.UnixMilli(today).UTC()}
			}
			p.from, p.until = time.UnixMilli(from), time.UnixMilli(until)
			l.parts = append(l.parts, p)
			return nil
		}, d.SQL(`
			WITH parts AS (
				SELECT quote_ident(n.nspname) AS home, pg_has_role(l.relowner, 'USAGE') AS owned,
				       p.oid::regclass AS part, pg_get_expr(p.relpartbound, p.oid) AS bound
				FROM pg_class AS l JOIN pg_namespace AS n ON n.oid = l.relnamespace
				JOIN pg_inherits AS h ON h.inhparent = l.oid JOIN pg_class AS p ON p.oid = h.inhrelid
				WHERE l.oid = to_regclass('{outbox_sent}') AND l.relkind = 'p'),
			times AS (
				SELECT *, COALESCE((regexp_match(bound, 'FROM \(''([^'']+)''\)'))[1], '-infinity')::timestamptz AS first,
				       COALESCE((regexp_match(bound, 'TO \(''([^'']+)''\)'))[1], 'infinity')::timestamptz AS last
				FROM parts)
			SELECT home, owned, {millis date_trunc('day',now(),'UTC')}, part::text, bound = 'DEFAULT', {millis first}, {millis last},
			       last <= {after $1}
			FROM times ORDER BY last`), -keep.Milliseconds())
	})
	if err != nil {
		return nil, fmt.Errorf("look at the days of the sent log: %w", err)
	}
	return l, nil
}
