package dedup

import (
	"fmt"

	"github.com/watermill-once/once/internal/dialect"
	"github.com/watermill-once/once/internal/parked"
)

// dayQueries are those of an inbox that is laid out by day, in PostgreSQL.
type dayQueries struct {
	alone    string
	patience string

	inbox string
	list  string

	there       string
	create      func(d day) string
	lockDefault string
	move        func(d day) string
	attach      func(d day) string

	state   func(d day) string
	lock    func(d day) string
	keep    func(d day) string
	refill  func(d day) string
	lockAll string
}

func newDayQueries(d dialect.Dialect) dayQueries {
	// on is a query about a day, which is %[1]s, from %[2]s to %[3]s.
	on := func(query string) func(d day) string {
		query = d.SQL(query)
		return func(d day) string { return fmt.Sprintf(query, d.table, d.lower(), d.upper()) }
	}
	return dayQueries{
		// One process at a time: others have their turn at a later sweep.
		alone:    fmt.Sprintf(`SELECT pg_try_advisory_xact_lock(%d)`, dayLock(d.Config().Table("inbox"))),
		patience: setTimeouts(d, dayPatience, dayIdle),

		inbox: d.SQL(`
			SELECT n.nspname, {millis now()} FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
			WHERE c.oid = to_regclass('{inbox}') AND c.relkind = 'p'`),

		list: d.SQL(`
			SELECT c.relname FROM pg_inherits AS h JOIN pg_class AS c ON c.oid = h.inhrelid
			WHERE h.inhparent = to_regclass('{inbox}')`),

		there: d.SQL(`
			SELECT COUNT(*) FROM (
				SELECT 1 FROM {inbox_default} WHERE message_id >= $1 AND message_id < $2 LIMIT $3) AS counted`),

		// Not as a partition from the start: that would lock the inbox for all.
		create:      on(`CREATE TABLE %[1]s (LIKE {inbox} INCLUDING ALL)`),
		lockDefault: d.SQL(`LOCK TABLE {inbox_default} IN ACCESS EXCLUSIVE MODE`),
		move: on(`
			WITH moved AS (DELETE FROM {inbox_default} WHERE message_id >= '%[2]s' AND message_id < '%[3]s' RETURNING *)
			INSERT INTO %[1]s SELECT * FROM moved`),
		attach: on(`ALTER TABLE {inbox} ATTACH PARTITION %[1]s FOR VALUES FROM ('%[2]s') TO ('%[3]s')`),

		state: on(`SELECT NOT EXISTS (SELECT 1 FROM %[1]s), pg_relation_size('%[1]s') = 0`),
		lock:  on(`LOCK TABLE %[1]s IN ACCESS EXCLUSIVE MODE`),

		// The same as what a sweep of rows leaves. The second part begins with
		// what is parked, so that the day is not read.
		keep: on(`
			CREATE TEMPORARY TABLE once_kept ON COMMIT DROP AS
			SELECT * FROM (
				SELECT i.* FROM %[1]s AS i WHERE processed_at >= {after $1}
				UNION
				SELECT i.* FROM {parked} AS p CROSS JOIN LATERAL (
					SELECT * FROM %[1]s AS i WHERE i.message_id = p.message_id AND i.consumer = p.consumer LIMIT 1) AS i
				WHERE p.message_id >= $2 AND p.message_id < $3 AND p.state NOT IN ` + parked.Final + `) AS kept
			LIMIT $4`),
		refill: on(`TRUNCATE %[1]s; INSERT INTO %[1]s SELECT * FROM once_kept`),

		// ONLY: not its partitions, which others may be using.
		lockAll: d.SQL(`LOCK TABLE ONLY {inbox} IN ACCESS EXCLUSIVE MODE`),
	}
}
