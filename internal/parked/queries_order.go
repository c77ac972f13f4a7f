package parked

import "github.com/watermill-once/once/internal/dialect"

// orderQueries are the statements about ordering keys, for PostgreSQL and
// SQLite alike.
type orderQueries struct {
	lock    string // none for SQLite, where writers are alone anyway
	promote string
	keysOf  string
	headed  string
	letGo   string
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
		// Not EXISTS: PostgreSQL could look through all heads for it.
		promote: d.SQL(`
			UPDATE {parked} SET state = 'waiting', due_at = {now}
			WHERE id ` + among + `
				SELECT (SELECT MIN(id) FROM {parked} AS p
				        WHERE p.consumer = k.consumer AND p.topic = k.topic AND p.ordering_key = k.ordering_key AND p.state = 'held')
				FROM ` + lists + ` AS k
				WHERE (SELECT 1 FROM {parked} AS p
				       WHERE p.consumer = k.consumer AND p.topic = k.topic AND p.ordering_key = k.ordering_key AND p.` + heads + `) IS NULL` +
			end),

		// Not as the index of the heads has it: PostgreSQL could look through all
		// of them.
		keysOf: d.SQL(`
			SELECT consumer, topic, ordering_key FROM {parked}
			WHERE id {among $1 bigint} AND ordering_key IS NOT NULL AND state || '' IN ('waiting', 'quarantined')`),

		headed: d.SQL(`
			SELECT ordering_key FROM {parked}
			WHERE consumer = $1 AND topic = $2 AND ordering_key IS NOT NULL AND ` + heads + ` AND state = 'quarantined'
			LIMIT $3`),

		letGo: d.SQL(`
			UPDATE {parked} SET ordering_key = NULL
			WHERE consumer = $1 AND topic = $2 AND ordering_key = $3 AND ` + heads + ` AND state = 'quarantined'`),

		// From key to key, a step in the index each, however much is held of one.
		// A join of what is held with the heads could be one of each with all.
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

// nextHeld is the first key of which something is held, or the next one.
func nextHeld(after string) string {
	return `(SELECT p.ordering_key FROM {parked} AS p
			WHERE p.consumer = $1 AND p.topic = $2 AND p.state = 'held' ` + after + ` ORDER BY p.ordering_key LIMIT 1)`
}

// heads is as the index of the heads has it. A query that is about quarantined
// ones says so besides, or the index would not be used.
const heads = `state IN ('waiting', 'quarantined')`
