package parkedrows

import (
	"strconv"

	"github.com/watermill-once/once/internal/dialect"
)

type claimQueries struct {
	due          dialect.Statement
	claim        string
	claimCrashed string
	claimedOf    string // of each tenant that has some: the rows that are claimed or were when a process died, and those with a lease
}

// Conditions that match the indexes parked_due and parked_crashed.
const (
	waits   = `state = 'waiting' AND crashes = 0 AND consumer = $1 AND topic = $2`
	crashed = `state = 'waiting' AND crashes > 0 AND consumer = $1 AND topic = $2`
)

func newClaimQueries(d dialect.Dialect) claimQueries {
	// The end of the lease is the new due time, so a row whose process dies becomes due again by
	// itself.
	lease := `
		UPDATE {parked}
		SET owner = $3, token = $4, due_at = {after $5}, crashes = ` + OneMore("crashes") + `
		WHERE id `
	// PostgreSQL knows the length without reading the envelope.
	returning := `
		RETURNING id, attempts, rounds, crashes, replays, priority_class, tenant, {clock} - {millis created_at},
		          COALESCE(ordering_key, ''), COALESCE({clock} - {millis early_since}, 0), length(envelope),
		          CASE WHEN length(envelope) <= CAST($6 AS bigint) THEN envelope END, ` +
		Undecodable + `, error, error_type`

	// In SQLite, LIMIT cannot contain a column, so each share needs its own statement.
	among, end := chosen(d)
	due := `
		SELECT chosen.id FROM unnest($7::text::text[], $8::text::text[], $9::text::bigint[]) AS share (priority_class, tenant, n)
		CROSS JOIN LATERAL (
			SELECT id FROM {parked} AS p
			WHERE ` + waits + ` AND p.priority_class = share.priority_class AND p.tenant = share.tenant AND due_at <= {now}
			ORDER BY due_at, id LIMIT share.n
			FOR UPDATE SKIP LOCKED) AS chosen`
	if d.SQLite() {
		due = `
		SELECT id FROM {parked}
		WHERE ` + waits + ` AND priority_class = $7 AND tenant = $8 AND due_at <= {now}
		ORDER BY due_at, id LIMIT $9`
	}

	return claimQueries{
		due: newDue(d),

		claim: d.SQL(lease + among + due + end + returning),
		claimCrashed: d.SQL(lease + among + `
			SELECT id FROM {parked}
			WHERE ` + crashed + ` AND due_at <= {now} AND NOT (tenant {among $8 text})
			ORDER BY due_at, id LIMIT $7
			{skip_locked}` + end + returning),

		claimedOf: d.SQL(`
			SELECT tenant, COUNT(*), COUNT(CASE WHEN token IS NOT NULL AND due_at > {now} THEN 1 END) FROM {parked}
			WHERE ` + crashed + ` AND (token IS NOT NULL OR due_at <= {now}) AND tenant <> '' GROUP BY tenant`),
	}
}

// newDue returns the query of [Store.Due]. $3 to $5 are the tenants after which the walks through
// the classes live, retry and replay begin. It returns the nth step of each walk that has due rows,
// then, with an n above maxTenants, the tenants of the retries that are overdue the longest, and in
// a row without a class whether crashed rows are due.
//
// It is one statement, because PostgreSQL spends most of its time planning, and [Poll] can keep the
// plan of one.
func newDue(d dialect.Dialect) dialect.Statement {
	collation := ` COLLATE "C"`
	if d.SQLite() {
		collation = ``
	}
	from := func(class, after string) string {
		return `SELECT '` + class + `' AS class, CAST(` + after + ` AS text)` + collation + ` AS after FROM has WHERE ` + class
	}
	return d.Statement(keepPlan, `
		WITH RECURSIVE has (live, retry, replay, crashed) AS (`+
		// No EXISTS: PostgreSQL ignores ORDER BY inside EXISTS, and could scan the whole table, or
		// the rows of all tenants.
		`
			SELECT (SELECT 1 FROM {parked} WHERE `+waits+` AND priority_class = 'live' AND due_at <= {now}
			        ORDER BY tenant, due_at LIMIT 1) IS NOT NULL,
			       (SELECT 1 FROM {parked} WHERE `+waits+` AND priority_class || '' = 'retry' AND due_at <= {now}
			        ORDER BY due_at LIMIT 1) IS NOT NULL,
			       (SELECT 1 FROM {parked} WHERE `+waits+` AND priority_class = 'replay' AND due_at <= {now}
			        ORDER BY tenant, due_at LIMIT 1) IS NOT NULL,
			       (SELECT 1 FROM {parked} WHERE `+crashed+` AND due_at <= {now}
			        ORDER BY due_at LIMIT 1) IS NOT NULL
		), seen (class, n, start, tenant, next) AS (`+
		// For each tenant, PostgreSQL makes one step in the index, however many rows the tenant has.
		`
			SELECT class, 0, ''`+collation+`, ''`+collation+`, `+following(`begin`, `after`)+`
			FROM (`+from(`live`, `$3`)+` UNION ALL `+from(`retry`, `$4`)+` UNION ALL `+from(`replay`, `$5`)+`) AS begin
		UNION ALL
			SELECT class, n + 1, CASE WHEN n = 0 THEN next ELSE start END, next, `+following(`seen`, `next`)+`
			FROM seen
			WHERE n < `+strconv.Itoa(maxTenants)+` AND next IS NOT NULL AND (n = 0 OR next <> start)
		)
		SELECT class, n, tenant, (SELECT 1 FROM {parked} AS p
			WHERE `+waits+` AND p.priority_class = seen.class AND p.tenant = seen.tenant AND due_at <= {now}
			ORDER BY due_at LIMIT 1) IS NOT NULL
		FROM seen WHERE n > 0
		UNION ALL
		SELECT 'retry', `+strconv.Itoa(maxTenants+1)+`, tenant, true
		FROM (SELECT tenant FROM {parked} WHERE `+waits+` AND priority_class || '' = 'retry' AND due_at <= {now}
		      ORDER BY due_at LIMIT `+strconv.Itoa(maxTenants)+`) AS overdue
		WHERE (SELECT retry FROM has)
		UNION ALL
		SELECT '', 0, '', crashed FROM has
		ORDER BY 1, 2`)
}

// keepPlan makes PostgreSQL keep the first plan of a prepared query. Otherwise it plans the query
// five times on each connection before it keeps a plan.
const keepPlan = `SET LOCAL plan_cache_mode = force_generic_plan`

// maxTenants limits the tenants of a class that one call of Store.Due examines one after another,
// and the overdue retries whose tenants it adds.
const maxTenants = 64

// following returns a query for the tenant that follows in the index. After the last tenant, it
// begins again.
func following(table, tenant string) string {
	of := `(SELECT p.tenant FROM {parked} AS p WHERE ` + waits + ` AND p.priority_class = ` + table + `.class`
	return `COALESCE(` + of + ` AND p.tenant > ` + table + `.` + tenant + ` ORDER BY p.tenant LIMIT 1), ` + of + ` ORDER BY p.tenant LIMIT 1))`
}

type orderQueries struct {
	lock    string // empty for SQLite, which has one writer at a time
	promote string
	keysOf  string
	blocked string
	unblock string
	orphans string
}

func newOrderQueries(d dialect.Dialect) orderQueries {
	among, end := chosen(d)
	lists := `(SELECT * FROM unnest($1::text::text[], $2::text::text[], $3::text::text[]) AS list (consumer, topic, ordering_key))`
	if d.SQLite() {
		lists = `(SELECT value AS consumer, json_extract($2, '$[' || key || ']') AS topic,
		                 json_extract($3, '$[' || key || ']') AS ordering_key
		          FROM json_each($1))`
	}
	q := orderQueries{
		// No EXISTS: PostgreSQL could then read all heads.
		promote: d.SQL(`
			UPDATE {parked} SET state = 'waiting', due_at = {now}
			WHERE id ` + among + `
				SELECT ` + firstHeld("k.consumer", "k.topic", "k.ordering_key") + `
				FROM ` + lists + ` AS k
				WHERE (SELECT 1 FROM {parked} AS p
				       WHERE p.consumer = k.consumer AND p.topic = k.topic AND p.ordering_key = k.ordering_key AND p.` + heads + `) IS NULL` +
			end),

		// Held rows are included, because one may become the head before its key is locked. The
		// expression state || '' keeps PostgreSQL from reading all heads through their index.
		keysOf: d.SQL(`
			SELECT consumer, topic, ordering_key FROM {parked}
			WHERE id {among $1 bigint} AND ordering_key IS NOT NULL AND state || '' IN ('waiting', 'held', 'quarantined')`),

		blocked: d.SQL(`
			SELECT ordering_key FROM {parked}
			WHERE consumer = $1 AND topic = $2 AND ordering_key IS NOT NULL AND ` + heads + ` AND state = 'quarantined'
			LIMIT $3`),

		unblock: d.SQL(`
			UPDATE {parked} SET ordering_key = NULL
			WHERE consumer = $1 AND topic = $2 AND ordering_key = $3 AND ` + heads + ` AND state = 'quarantined'`),

		// For each key, PostgreSQL makes one step in the index, however many rows of the key
		// are held. A join of held rows with heads could compare each row with all heads.
		orphans: d.SQL(`
			WITH RECURSIVE seen (ordering_key) AS (
				SELECT ` + nextHeld("") + `
			UNION ALL
				SELECT ` + nextHeld("AND p.ordering_key > seen.ordering_key") + `
				FROM seen WHERE ordering_key IS NOT NULL
			)
			SELECT ordering_key FROM seen
			WHERE ordering_key IS NOT NULL
			  AND (SELECT 1 FROM {parked} AS p
			       WHERE p.consumer = $1 AND p.topic = $2 AND p.ordering_key = seen.ordering_key AND p.` + heads + `) IS NULL
			LIMIT $3`),
	}
	if !d.SQLite() {
		q.lock = d.SQL(`SELECT pg_advisory_xact_lock(lock) FROM unnest($1::text::bigint[]) AS lock`)
	}
	return q
}

// firstHeld returns a query for the id of the first held row of a key.
//
// It does not contain ordering_key = key, because PostgreSQL could then read the rows in the order
// of their ids: statistics from a time when one key had most rows promise few rows before the first
// held one, but all rows that were handled since come first.
func firstHeld(consumer, topic, key string) string {
	return `(SELECT p.id FROM {parked} AS p
				        WHERE p.consumer = ` + consumer + ` AND p.topic = ` + topic + ` AND p.state = 'held'
				          AND p.ordering_key >= ` + key + ` AND p.ordering_key <= ` + key + `
				        ORDER BY p.ordering_key, p.id LIMIT 1)`
}

func nextHeld(after string) string {
	return `(SELECT p.ordering_key FROM {parked} AS p
			WHERE p.consumer = $1 AND p.topic = $2 AND p.state = 'held' ` + after + ` ORDER BY p.ordering_key LIMIT 1)`
}

// heads must be in a query for quarantined heads, because otherwise PostgreSQL does not use the
// index parked_head.
const heads = `state IN ('waiting', 'quarantined')`
