// Package sentdays creates and drops the days of a sent log that is partitioned by day.
// It is a package because both the forwarder and package deadletter do this.
package sentdays

import (
	"context"
	"database/sql"
	"fmt"
	"hash/fnv"
	"strings"
	"time"

	"github.com/watermill-once/once/internal/dialect"
)

const (
	// ahead is the number of coming days for which partitions are created.
	ahead = 7

	// lockTimeout is how long work on a partition waits for a lock. Forwarders that
	// arrive in the meantime wait behind it for the same time.
	lockTimeout = "50ms"

	// forgetAtOnce is the maximum number of rows of the default partition that one
	// transaction deletes.
	forgetAtOnce = 1000
)

// Result is what a sweep has found and done.
type Result struct {
	ByDay bool // the sent log is partitioned by day
	Owner bool // the database user owns it; otherwise nothing was done

	Created, Dropped int // days

	Forgotten int64 // rows of the default partition
}

// partition is a partition of the sent log.
type partition struct {
	name    string // quoted, with the schema
	from    time.Time
	until   time.Time
	expired bool
	rest    bool // the default partition
}

// log is the sent log of a database.
type log struct {
	schema string
	owner  bool
	today  time.Time
	parts  []partition
}

// Sweep creates the partitions of the coming days, and drops those that ended longer
// ago than keep. If a lock is not free at once, it leaves the work to the next call.
func Sweep(ctx context.Context, db *sql.DB, d dialect.Dialect, keep time.Duration) (r Result, err error) {
	if d.SQLite() {
		return Result{}, nil
	}
	l, err := look(ctx, db, d, keep)
	if err != nil || l == nil {
		return Result{}, err
	}
	r = Result{ByDay: true, Owner: l.owner}
	if !l.owner {
		return r, nil
	}
	for n := range ahead {
		begin := l.today.AddDate(0, 0, n+1)
		if l.has(begin) {
			continue
		}
		if err := change(ctx, db, d, create(d, l.schema, begin), &r.Created); err != nil {
			return r, err
		}
	}
	for _, p := range l.parts {
		switch {
		case p.rest:
			r.Forgotten, err = forget(ctx, db, d, p.name, keep)
		case p.expired:
			err = change(ctx, db, d, `DROP TABLE `+p.name, &r.Dropped)
		}
		if err != nil {
			return r, err
		}
	}
	return r, nil
}

// has reports whether a partition contains a day.
func (l *log) has(begin time.Time) bool {
	for _, p := range l.parts {
		if !p.rest && !p.from.After(begin) && !p.until.Before(begin.AddDate(0, 0, 1)) {
			return true
		}
	}
	return false
}

// look returns nil if the sent log is a plain table. Partitions are known by their
// bounds, whatever their names are.
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

// create returns the statements that create the partition of a day. It is attached
// later: CREATE TABLE ... PARTITION OF would lock the whole log against forwarders.
func create(d dialect.Dialect, schema string, begin time.Time) string {
	name := schema + `."` + d.Config().Prefix + `sent_` + begin.Format("20060102") + `"`
	return fmt.Sprintf(d.SQL(`CREATE TABLE %[1]s (LIKE {outbox_sent} INCLUDING DEFAULTS INCLUDING INDEXES);
		ALTER TABLE {outbox_sent} ATTACH PARTITION %[1]s FOR VALUES FROM ('%[2]s') TO ('%[3]s')`),
		name, begin.Format(time.RFC3339), begin.AddDate(0, 0, 1).Format(time.RFC3339))
}

// change runs work on one day, and counts it. Only one process at a time works on days;
// others leave it to that one.
func change(ctx context.Context, db *sql.DB, d dialect.Dialect, statements string, count *int) error {
	var locked bool
	err := d.Write(ctx, db, func(tx *sql.Tx) error {
		if err := tx.QueryRowContext(ctx, fmt.Sprintf(`SELECT pg_try_advisory_xact_lock(%d)`, lockKey(d))).Scan(&locked); err != nil || !locked {
			return err
		}
		_, err := tx.ExecContext(ctx, `SET LOCAL lock_timeout = '`+lockTimeout+`'; `+statements)
		return err
	})
	switch state := dialect.State(err); {
	case err == nil && locked:
		*count++
	case dialect.Contended(err), state == "42P01", state == "42P07": // undefined_table, duplicate_table: another process was faster
		return nil
	}
	if err != nil {
		statement, _, _ := strings.Cut(statements, ";")
		return fmt.Errorf("days of the sent log: %s: %w", statement, err)
	}
	return nil
}

// forget deletes expired rows of the default partition.
func forget(ctx context.Context, db *sql.DB, d dialect.Dialect, name string, keep time.Duration) (removed int64, err error) {
	for {
		var n int64
		err := d.Write(ctx, db, func(tx *sql.Tx) (err error) {
			n, err = dialect.Affected(tx.ExecContext(ctx, d.SQL(`DELETE FROM `+name+` WHERE id IN (
				SELECT id FROM (SELECT id, sent_at FROM `+name+` ORDER BY id LIMIT $2) AS oldest WHERE sent_at < {after $1})`),
				-keep.Milliseconds(), forgetAtOnce))
			return err
		})
		removed += n
		if err != nil || n < forgetAtOnce {
			return removed, err
		}
	}
}

func lockKey(d dialect.Dialect) int64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte("once days " + d.Config().Table("outbox_sent")))
	return int64(h.Sum64())
}
