package parked

import "github.com/watermill-once/once/internal/dialect"

// orderQueries are the statements about ordering keys, for PostgreSQL and
// SQLite alike.
type orderQueries struct {
	lock    string // none for SQLite, where writers are alone anyway
	insert  string
	promote string
	keysOf  string
	headed  string
	letGo   string
	orphans string
}

func newOrderQueries(d dialect.Dialect) orderQueries {
	q := orderQueries{
		// For whoever has the lock: no other row of the key comes or goes
		// meanwhile.
		insert: d.SQL(`
			INSERT INTO {parked} (consumer, topic, message_id, ordering_key, tenant, digest, envelope, due_at, state)
			VALUES ($1, $2, $3, $4, $5, $6, $7, {now},
			        CASE WHEN EXISTS (SELECT 1 FROM {parked} WHERE consumer = $1 AND topic = $2 AND ordering_key = $4 AND ` + heads + `)
			               OR EXISTS (SELECT 1 FROM {parked} WHERE consumer = $1 AND topic = $2 AND ordering_key = $4 AND state = 'held')
			             THEN 'held' ELSE 'waiting' END)
			ON CONFLICT (consumer, message_id, digest) WHERE message_id <> '' DO NOTHING`),

		promote: d.SQL(`
			UPDATE {parked} SET state = 'waiting', due_at = {now}
			WHERE id = (SELECT MIN(id) FROM {parked}
			            WHERE consumer = $1 AND topic = $2 AND ordering_key = $3 AND state = 'held')
			  AND NOT EXISTS (SELECT 1 FROM {parked}
			                  WHERE consumer = $1 AND topic = $2 AND ordering_key = $3 AND ` + heads + `)`),

		keysOf: d.SQL(`
			SELECT consumer, topic, ordering_key FROM {parked}
			WHERE id IN {list $1 bigint} AND ordering_key IS NOT NULL AND ` + heads),

		headed: d.SQL(`
			SELECT ordering_key FROM {parked}
			WHERE consumer = $1 AND topic = $2 AND ordering_key IS NOT NULL AND ` + heads + ` AND state = 'quarantined'
			LIMIT $3`),

		letGo: d.SQL(`
			UPDATE {parked} SET ordering_key = NULL
			WHERE consumer = $1 AND topic = $2 AND ordering_key = $3 AND ` + heads + ` AND state = 'quarantined'`),

		orphans: d.SQL(`
			SELECT DISTINCT ordering_key FROM {parked} AS h
			WHERE consumer = $1 AND topic = $2 AND state = 'held'
			  AND NOT EXISTS (SELECT 1 FROM {parked}
			                  WHERE consumer = $1 AND topic = $2 AND ordering_key = h.ordering_key AND ` + heads + `)
			LIMIT $3`),
	}
	if !d.SQLite() {
		q.lock = d.SQL(`SELECT pg_advisory_xact_lock($1)`)
	}
	return q
}

// heads is as the index of the heads has it. A query that is about quarantined
// ones says so besides, or the index would not be used.
const heads = `state IN ('waiting', 'quarantined')`
