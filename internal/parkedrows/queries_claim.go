package parkedrows

import (
	"strconv"

	"github.com/watermill-once/once/internal/dialect"
)

// claimQueries are the statements that find due rows and claim them.
type claimQueries struct {
	due            string
	dueAlone       dialect.Statement // due as a query outside of a transaction
	nextTenants    string
	overdueTenants string
	claim          string
	claimCrashed   string
}

// Conditions that match the indexes parked_due and parked_crashed, for the consumer $1
// and the topic $2.
const (
	waits   = `state = 'waiting' AND crashes = 0 AND consumer = $1 AND topic = $2`
	crashed = `state = 'waiting' AND crashes > 0 AND consumer = $1 AND topic = $2`
)

func newClaimQueries(d dialect.Dialect) claimQueries {
	// The end of the lease is the new due time. So if the process dies, the row becomes due
	// again without further statements.
	lease := `
		UPDATE {parked}
		SET owner = $3, token = $4, due_at = {after $5}, crashes = ` + OneMore("crashes") + `
		WHERE id `
	// PostgreSQL knows the length without reading the envelope, which may be
	// stored outside of the row.
	returning := `
		RETURNING id, attempts, rounds, crashes, replays, priority_class, tenant, {clock} - {millis created_at},
		          COALESCE(ordering_key, ''), COALESCE({clock} - {millis early_since}, 0), length(envelope),
		          CASE WHEN length(envelope) <= CAST($6 AS bigint) THEN envelope END, ` +
		Undecodable + `, error, error_type`

	// With PostgreSQL, one statement claims all shares. In SQLite, LIMIT cannot contain a
	// column, so each share needs its own statement. This costs no round trips, because
	// SQLite runs in this process.
	among, end := chosen(d)
	none, due := `'' COLLATE "C"`, `
		SELECT chosen.id FROM unnest($7::text::text[], $8::text::text[], $9::text::bigint[]) AS share (priority_class, tenant, n)
		CROSS JOIN LATERAL (
			SELECT id FROM {parked} AS p
			WHERE `+waits+` AND p.priority_class = share.priority_class AND p.tenant = share.tenant AND due_at <= {now}
			ORDER BY due_at, id LIMIT share.n
			FOR UPDATE SKIP LOCKED) AS chosen`
	if d.SQLite() {
		none, due = `''`, `
		SELECT id FROM {parked}
		WHERE `+waits+` AND priority_class = $7 AND tenant = $8 AND due_at <= {now}
		ORDER BY due_at, id LIMIT $9`
	}

	// The columns are the priority classes in their order, then crashed rows. The query
	// does not use EXISTS, because PostgreSQL ignores ORDER BY inside EXISTS. Without
	// ORDER BY, it could scan the whole table, or read the rows of all tenants.
	const anyDue = `
			SELECT (SELECT 1 FROM {parked} WHERE ` + waits + ` AND priority_class = 'live' AND due_at <= {now}
			        ORDER BY tenant, due_at LIMIT 1) IS NOT NULL,
			       (SELECT 1 FROM {parked} WHERE ` + waits + ` AND priority_class || '' = 'retry' AND due_at <= {now}
			        ORDER BY due_at LIMIT 1) IS NOT NULL,
			       (SELECT 1 FROM {parked} WHERE ` + waits + ` AND priority_class = 'replay' AND due_at <= {now}
			        ORDER BY tenant, due_at LIMIT 1) IS NOT NULL,
			       (SELECT 1 FROM {parked} WHERE ` + crashed + ` AND due_at <= {now}
			        ORDER BY due_at LIMIT 1) IS NOT NULL`

	return claimQueries{
		due:      d.SQL(anyDue),
		dueAlone: d.Statement("", anyDue),

		// For each tenant, PostgreSQL makes one step in the index, however many rows the
		// tenant has.
		nextTenants: d.SQL(`
			WITH RECURSIVE seen (n, start, tenant, next) AS (
				SELECT 0, ` + none + `, ` + none + `, ` + following(`$4`) + `
			UNION ALL
				SELECT n + 1, CASE WHEN n = 0 THEN next ELSE start END, next, ` + following(`seen.next`) + `
				FROM seen
				WHERE n < ` + strconv.Itoa(maxTenants) + ` AND next IS NOT NULL AND (n = 0 OR next <> start)
			)
			SELECT tenant, (SELECT 1 FROM {parked} AS p
			                WHERE ` + waits + ` AND priority_class = $3 AND p.tenant = seen.tenant AND due_at <= {now}
			                ORDER BY due_at LIMIT 1) IS NOT NULL
			FROM seen WHERE n > 0
			ORDER BY n`),

		overdueTenants: d.SQL(`
			SELECT DISTINCT tenant
			FROM (SELECT tenant FROM {parked} WHERE ` + waits + ` AND priority_class || '' = 'retry' AND due_at <= {now}
			      ORDER BY due_at LIMIT ` + strconv.Itoa(maxTenants) + `) AS overdue`),

		claim: d.SQL(lease + among + due + end + returning),
		claimCrashed: d.SQL(lease + among + `
			SELECT id FROM {parked}
			WHERE ` + crashed + ` AND due_at <= {now}
			ORDER BY due_at, id LIMIT $7
			{skip_locked}` + end + returning),
	}
}

// maxTenants is the maximum number of tenants of a class that one call of Store.Due
// examines one after another. It is also the maximum number of overdue retries whose
// tenants Due adds.
const maxTenants = 64

// following returns a query for the tenant that follows the given tenant in the index.
// After the last tenant, it begins again with the first one.
func following(tenant string) string {
	const of = `(SELECT p.tenant FROM {parked} AS p WHERE ` + waits + ` AND priority_class = $3`
	return `COALESCE(` + of + ` AND p.tenant > ` + tenant + ` ORDER BY p.tenant LIMIT 1), ` + of + ` ORDER BY p.tenant LIMIT 1))`
}

// orderQueries are the statements for ordering keys.
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
		// The query does not use EXISTS, because PostgreSQL could then read all heads.
		promote: d.SQL(`
			UPDATE {parked} SET state = 'waiting', due_at = {now}
			WHERE id ` + among + `
				SELECT ` + firstHeld("k.consumer", "k.topic", "k.ordering_key") + `
				FROM ` + lists + ` AS k
				WHERE (SELECT 1 FROM {parked} AS p
				       WHERE p.consumer = k.consumer AND p.topic = k.topic AND p.ordering_key = k.ordering_key AND p.` + heads + `) IS NULL` +
			end),

		// The query includes held rows, because a held row may become the head before its key
		// is locked. The expression state || '' prevents the use of the index of the heads:
		// with this index, PostgreSQL could read all heads.
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

// firstHeld returns a query for the id of the first held row of a key. The parameters
// are SQL expressions.
//
// The query does not contain ordering_key = key, because PostgreSQL could then read the
// rows in the order of their ids, without the index of held rows. It expects few rows
// before the first held one if its statistics were collected while most rows of the
// table were held rows of one key. But all rows that were handled since come first.
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

// heads is the condition of the index parked_head. A query for quarantined heads must
// contain it, because otherwise PostgreSQL does not use the index.
const heads = `state IN ('waiting', 'quarantined')`
