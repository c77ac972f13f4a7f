package dedup

import (
	"context"
	"database/sql"

	"go.opentelemetry.io/otel/metric"

	"github.com/watermill-once/once/internal/dialect"
	"github.com/watermill-once/once/internal/telemetry"
)

// size contains estimates, because a count would read the whole inbox. A negative
// number means that the value is not known.
type size struct {
	live, dead int64 // numbers of rows; dead rows are deleted rows that vacuum has not removed yet
	bytes      int64 // including indexes
}

// sizeQuery returns the query that reads the fields of size. It adds up the partitions
// of an inbox by day. For a table without partitions, pg_partition_tree is empty. The
// statistics of a table contain the current number of rows, but are lost when the
// server crashes. After a crash, the query uses the number of rows that the last vacuum
// has stored. SQLite has no statistics, but it numbers rows in the order of their
// inserts. So the query computes the number of rows from the lowest and the highest
// number.
func sizeQuery(d dialect.Dialect) string {
	if d.SQLite() {
		return d.SQL(`SELECT COALESCE((SELECT MAX(rowid) FROM {inbox}) - (SELECT MIN(rowid) FROM {inbox}) + 1, 0), -1, -1`)
	}
	return d.SQL(`
		SELECT COALESCE(SUM(GREATEST(CASE WHEN pg_stat_get_live_tuples(relid) > 0 THEN pg_stat_get_live_tuples(relid)
		                                  ELSE c.reltuples::bigint END, 0)), 0)::bigint,
		       COALESCE(SUM(pg_stat_get_dead_tuples(relid)), 0)::bigint,
		       COALESCE(SUM(pg_total_relation_size(relid)), 0)::bigint
		FROM (SELECT to_regclass('{inbox}') AS relid UNION SELECT relid FROM pg_partition_tree(to_regclass('{inbox}'))) AS tables
		JOIN pg_class AS c ON c.oid = relid AND c.relkind = 'r'`)
}

// size estimates the size of the inbox for all consumers together.
func (i *Inbox) size(ctx context.Context) (s size, err error) {
	err = i.dialect.Read(ctx, i.db, func(tx *sql.Tx) error {
		return tx.QueryRowContext(ctx, i.sql.size).Scan(&s.live, &s.dead, &s.bytes)
	})
	return s, err
}

// observeSize observes the size of the inbox until the returned function end is called.
func (i *Inbox) observeSize() (end func()) {
	var cache telemetry.StatsCache[size]
	logError := func(err error) {
		i.config.Logger.Error("Metrics of the inbox cannot be read, retrying", err, nil)
	}
	instruments := i.instruments
	live, dead := telemetry.StateOf("live"), telemetry.StateOf("dead")
	return instruments.meter.Observe(func(ctx context.Context, o metric.Observer) error {
		seen, ok := cache.Get(ctx, i.size, logError)
		if !ok {
			return nil
		}
		o.ObserveInt64(instruments.rows, seen.live, live)
		if seen.dead >= 0 {
			o.ObserveInt64(instruments.rows, seen.dead, dead)
			o.ObserveInt64(instruments.bytes, seen.bytes)
		}
		return nil
	}, instruments.rows, instruments.bytes)
}
