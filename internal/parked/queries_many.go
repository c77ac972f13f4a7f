package parked

import (
	"strconv"

	"github.com/watermill-once/once/internal/dialect"
)

// manyQueries are the statements that take many rows at once.
type manyQueries struct {
	receive string
	remove  string
	resolve string
	release string
	forget  string
}

func newManyQueries(d dialect.Dialect) manyQueries {
	// The lists that come as $3 to $6, side by side, in their order.
	bytes, lists := `::bytea`, `unnest($3::text::text[], $4::text::text[], $5::text::int[], $6::text::int[])
		WITH ORDINALITY AS list (message_id, tenant, start, length, n)`
	if d.SQLite() {
		bytes, lists = ``, `(SELECT value AS message_id, json_extract($4, at) AS tenant, json_extract($5, at) AS start,
		                 json_extract($6, at) AS length, n
		          FROM (SELECT value, key + 1 AS n, '$[' || key || ']' AS at FROM json_each($3)))`
	}
	// An id alone could be of a row that went on to another claim of the same
	// process.
	const held = `id IN {list $1 bigint} AND CAST(id AS text) || ' ' || token IN {list $2 text} AND state = 'waiting'`
	size := strconv.Itoa(digestSize)

	return manyQueries{
		receive: d.SQL(`
			INSERT INTO {parked} (consumer, topic, message_id, tenant, digest, envelope, state, due_at)
			SELECT $1, $2, message_id, tenant, substr($7` + bytes + `, CAST(n - 1 AS integer) * ` + size + ` + 1, ` + size + `),
			       substr($8` + bytes + `, start, length), 'waiting', {now}
			FROM (SELECT * FROM ` + lists + ` ORDER BY n) AS received
			WHERE true -- SQLite could take what follows for a join
			ON CONFLICT (consumer, message_id, digest) WHERE message_id <> '' DO NOTHING`),

		remove: d.SQL(`DELETE FROM {parked} WHERE ` + held + ` RETURNING id`),

		resolve: d.SQL(`
			UPDATE {parked} SET state = 'resolved', owner = NULL, token = NULL, crashes = 0, finished_at = {now}
			WHERE ` + held + ` RETURNING id`),

		release: d.SQL(`
			UPDATE {parked}
			SET lane = CASE WHEN CAST($3 AS bigint) > 0 THEN 'retry' ELSE lane END,
			    due_at = {after $3}, owner = NULL, token = NULL, crashes = crashes - 1
			WHERE ` + held + ` RETURNING id`),

		// What was replayed stays on record for as long as dedup remembers.
		forget: d.SQL(`
			DELETE FROM {parked} WHERE id IN (
				SELECT id FROM {parked}
				WHERE state = 'resolved' AND finished_at < {after $3} AND consumer = $1 AND topic = $2 AND replays = 0
				LIMIT $4
				{skip_locked})`),
	}
}
