package outboxrow

import (
	"context"
	"database/sql"
	"fmt"
	"strings"
	"time"

	"github.com/watermill-once/once/internal/dialect"
)

// SentDays is the result of [SweepSentDays].
type SentDays struct {
	ByDay bool // whether the sent log is partitioned by day
	Owner bool // whether the database user owns the sent log; if not, nothing was done

	Created, Dropped int // numbers of partitions

	Forgotten int64 // number of deleted rows of the default partition
}

// SweepSentDays creates the partitions of the next days of a sent log by day, drops those that
// ended at least keep ago, and deletes older rows of the default partition. What a lock prevents is
// left to the next call.
func SweepSentDays(ctx context.Context, db *sql.DB, d dialect.Dialect, keep time.Duration) (r SentDays, err error) {
	if d.SQLite() {
		return SentDays{}, nil
	}
	l, err := lookAtDays(ctx, db, d, keep)
	if err != nil || l == nil {
		return SentDays{}, err
	}
	r = SentDays{ByDay: true, Owner: l.owner}
	if !l.owner {
		return r, nil
	}
	for n := range dialect.DaysAhead {
		begin := l.today.AddDate(0, 0, n+1)
		if l.has(begin) {
			continue
		}
		if err := changeDay(ctx, db, d, createDay(d, l.schema, begin), &r.Created); err != nil {
			return r, err
		}
	}
	for _, p := range l.parts {
		switch {
		case p.rest:
			r.Forgotten, err = forgetRest(ctx, db, d, p.name, keep)
		case p.expired:
			err = changeDay(ctx, db, d, `DROP TABLE `+p.name, &r.Dropped)
		}
		if err != nil {
			return r, err
		}
	}
	return r, nil
}

type sentPartition struct {
	name    string // quoted name, with the schema
	from    time.Time
	until   time.Time
	expired bool
	rest    bool // whether this is the default partition
}

type sentLog struct {
	schema string
	owner  bool
	today  time.Time
	parts  []sentPartition
}

func (l *sentLog) has(begin time.Time) bool {
	for _, p := range l.parts {
		if !p.rest && !p.from.After(begin) && !p.until.Before(begin.AddDate(0, 0, 1)) {
			return true
		}
	}
	return false
}

// lookAtDays returns nil if the log is a plain table. It recognizes partitions by their bounds, not
// by their names.
func lookAtDays(ctx context.Context, db *sql.DB, d dialect.Dialect, keep time.Duration) (*sentLog, error) {
	var l *sentLog
	err := d.Read(ctx, db, func(tx *sql.Tx) error {
		l = nil
		return dialect.EachRow(ctx, tx, func(scan func(dest ...any) error) error {
			var (
				p                  sentPartition
				schema             string
				owner              bool
				today, from, until int64
			)
			if err := scan(&schema, &owner, &today, &p.name, &p.rest, &from, &until, &p.expired); err != nil {
				return err
			}
			if l == nil {
				l = &sentLog{schema: schema, owner: owner, today: time.UnixMilli(today).UTC()}
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

const forgetAtOnce = 1000

// createDay attaches the partition later: CREATE TABLE ... PARTITION OF would lock the whole log,
// and forwarders would have to wait.
func createDay(d dialect.Dialect, schema string, begin time.Time) string {
	name := schema + `."` + d.Config().Prefix + `sent_` + begin.Format(dialect.DayName) + `"`
	return fmt.Sprintf(d.SQL(`CREATE TABLE %[1]s (LIKE {outbox_sent} INCLUDING DEFAULTS INCLUDING INDEXES);
		ALTER TABLE {outbox_sent} ATTACH PARTITION %[1]s FOR VALUES FROM ('%[2]s') TO ('%[3]s')`),
		name, begin.Format(time.RFC3339), begin.AddDate(0, 0, 1).Format(time.RFC3339))
}

// changeDay executes statements for one day, and counts it. If another process creates or drops
// partitions, it does nothing.
func changeDay(ctx context.Context, db *sql.DB, d dialect.Dialect, statements string, count *int) error {
	done, err := d.InDaysTx(ctx, db, "outbox_sent", func(tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, fmt.Sprintf(`SET LOCAL lock_timeout = '%dms'; `, dialect.DayLockTimeout.Milliseconds())+statements)
		return err
	})
	switch {
	case done:
		*count++
	case err != nil && !dialect.DayInUse(err):
		statement, _, _ := strings.Cut(statements, ";")
		return fmt.Errorf("days of the sent log: %s: %w", statement, err)
	}
	return nil
}

// forgetRest deletes old rows of the default partition, and returns their number.
func forgetRest(ctx context.Context, db *sql.DB, d dialect.Dialect, name string, keep time.Duration) (removed int64, err error) {
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
