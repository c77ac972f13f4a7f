package parked

import "github.com/watermill-once/once/internal/dialect"

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
				SELECT (SELECT MIN(id) FROM {parked} AS p
				        WHERE p.consumer = k.consumer AND p.topic = k.topic AND p.ordering_key = k.ordering_key AND p.state = 'held')
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

// nextHeld returns a query for the first key that has held rows and fulfils the SQL
// condition in the parameter after.
func nextHeld(after string) string {
	return `(SELECT p.ordering_key FROM {parked} AS p
			WHERE p.consumer = $1 AND p.topic = $2 AND p.state = 'held' ` + after + ` ORDER BY p.ordering_key LIMIT 1)`
}

// heads is the condition of the index parked_head. A query for quarantined heads must
// contain it, because otherwise PostgreSQL does not use the index.
const heads = `state IN ('waiting', 'quarantined')`
