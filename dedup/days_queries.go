package dedup

import (
	"fmt"

	"github.com/watermill-once/once/internal/dialect"
	"github.com/watermill-once/once/internal/parked"
)

// dayQueries are the statements for the layout schema.ByDay, in PostgreSQL.
type dayQueries struct {
	tryLock  string // only one process at a time works on days
	timeouts string

	inbox string // schema of the inbox, and current time
	list  string // lists the partitions of the inbox

	// Statements that create a day.
	countRows   string // number of the day's rows in the default partition
	create      func(d day) string
	lockDefault string
	move        func(d day) string
	attach      func(d day) string

	// Statements that empty and drop a day.
	state     func(d day) string // whether the day is empty, and whether its file is empty
	lock      func(d day) string
	keep      func(d day) string
	refill    func(d day) string
	lockInbox string
}

func newDayQueries(d dialect.Dialect) dayQueries {
	// forDay returns a function that fills in the placeholders of query for a day. The
	// table of the day replaces %[1]s, its lowest id replaces %[2]s, and the lowest id of
	// the next day replaces %[3]s.
	forDay := func(query string) func(d day) string {
		query = d.SQL(query)
		return func(d day) string { return fmt.Sprintf(query, d.table, d.lower(), d.upper()) }
	}
	return dayQueries{
		// If another process has the lock, this statement does not wait. The other
		// process does the work, and this process continues with its next sweep.
		tryLock:  fmt.Sprintf(`SELECT pg_try_advisory_xact_lock(%d)`, dayLock(d.Config().Table("inbox"))),
		timeouts: setTimeouts(dayLockTimeout, dayIdleTimeout),

		inbox: d.SQL(`
			SELECT n.nspname, {millis now()} FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
			WHERE c.oid = to_regclass('{inbox}') AND c.relkind = 'p'`),

		list: d.SQL(`
			SELECT c.relname FROM pg_inherits AS h JOIN pg_class AS c ON c.oid = h.inhrelid
			WHERE h.inhparent = to_regclass('{inbox}')`),

		countRows: d.SQL(`
			SELECT COUNT(*) FROM (
				SELECT 1 FROM {inbox_default} WHERE message_id >= $1 AND message_id < $2 LIMIT $3) AS counted`),

		// The partition is attached later: CREATE TABLE ... PARTITION OF would lock the
		// whole inbox.
		create:      forDay(`CREATE TABLE %[1]s (LIKE {inbox} INCLUDING ALL)`),
		lockDefault: d.SQL(`LOCK TABLE {inbox_default} IN ACCESS EXCLUSIVE MODE`),
		move: forDay(`
			WITH moved AS (DELETE FROM {inbox_default} WHERE message_id >= '%[2]s' AND message_id < '%[3]s' RETURNING *)
			INSERT INTO %[1]s SELECT * FROM moved`),
		attach: forDay(`ALTER TABLE {inbox} ATTACH PARTITION %[1]s FOR VALUES FROM ('%[2]s') TO ('%[3]s')`),

		state: forDay(`SELECT NOT EXISTS (SELECT 1 FROM %[1]s), pg_relation_size('%[1]s') = 0`),
		lock:  forDay(`LOCK TABLE %[1]s IN ACCESS EXCLUSIVE MODE`),

		// This selects the rows that the statement of newSweepRows keeps, too. The SELECT
		// after UNION begins with the parked messages and looks up their ids, so that it
		// does not read the whole day.
		keep: forDay(`
			CREATE TEMPORARY TABLE once_kept ON COMMIT DROP AS
			SELECT * FROM (
				SELECT i.* FROM %[1]s AS i WHERE processed_at >= {after $1}
				UNION
				SELECT i.* FROM {parked} AS p CROSS JOIN LATERAL (
					SELECT * FROM %[1]s AS i WHERE i.message_id = p.message_id AND i.consumer = p.consumer LIMIT 1) AS i
				WHERE p.message_id >= $2 AND p.message_id < $3 AND p.state NOT IN ` + parked.Final + `) AS kept
			LIMIT $4`),
		refill: forDay(`TRUNCATE %[1]s; INSERT INTO %[1]s SELECT * FROM once_kept`),

		// With ONLY, the partitions are not locked, because other transactions use
		// them.
		lockInbox: d.SQL(`LOCK TABLE ONLY {inbox} IN ACCESS EXCLUSIVE MODE`),
	}
}
