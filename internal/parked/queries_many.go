package parked

import (
	"strconv"

	"github.com/watermill-once/once/internal/dialect"
)

// manyQueries are the statements that change many rows at once.
type manyQueries struct {
	receive string
	inOrder string
	resolve string
	release string
}

// claimed is the SQL condition that selects the rows of claims. It compares id and
// token together, because this process may have two claims of one row.
const claimed = `id {among $1 bigint} AND CAST(id AS text) || ' ' || token {among $2 text} AND state = 'waiting'`

func newManyQueries(d dialect.Dialect) manyQueries {
	return manyQueries{
		receive: newReceive(d, "", "", `'waiting'`),

		// The caller must have locked the keys, so that no other transaction changes their
		// rows. The first message of a key becomes its head, if the key has no head and no
		// held row.
		inOrder: newReceive(d, "ordering_key", `, row_number() OVER (PARTITION BY ordering_key ORDER BY n) AS nth`, `
			       CASE WHEN nth = 1
			             AND (SELECT 1 FROM {parked} AS p WHERE p.consumer = $1 AND p.topic = $2
			                  AND p.ordering_key = received.ordering_key AND p.`+heads+`) IS NULL
			             AND (SELECT 1 FROM {parked} AS p WHERE p.consumer = $1 AND p.topic = $2
			                  AND p.ordering_key = received.ordering_key AND p.state = 'held' LIMIT 1) IS NULL
			            THEN 'waiting' ELSE 'held' END`),

		resolve: d.SQL(`
			UPDATE {parked} SET state = 'resolved', owner = NULL, token = NULL, crashes = 0, finished_at = {now}
			WHERE ` + claimed + ` RETURNING id`),

		release: d.SQL(`
			UPDATE {parked}
			SET priority_class = CASE WHEN CAST($3 AS bigint) > 0 THEN 'retry' ELSE priority_class END,
			    due_at = {after $3}, owner = NULL, token = NULL, crashes = crashes - 1
			WHERE ` + claimed + ` RETURNING id`),
	}
}

// newReceive returns the statement that stores several messages in their order. The
// values of each column are passed as a list, in $3 to $6 and $9 to $12. If the
// parameter column is not "", it is the name of a further column, whose list is $13.
// The parameter state is an SQL expression for the state of each row. The parameter
// besides adds columns that this expression uses.
func newReceive(d dialect.Dialect, column, besides, state string) string {
	var more, list, element string
	if column != "" {
		more, list, element = ", "+column, ", $13::text::text[]", ", json_extract($13, at) AS "+column
	}
	bytes, lists := `::bytea`, `unnest($3::text::text[], $4::text::text[], $5::text::int[], $6::text::int[],
		$9::text::text[], $10::text::text[], $11::text::text[], $12::text::text[]`+list+`)
		WITH ORDINALITY AS list (message_id, tenant, start, length, `+labelColumns+more+`, n)`
	if d.SQLite() {
		bytes, lists = ``, `(SELECT value AS message_id, json_extract($4, at) AS tenant, json_extract($5, at) AS start,
		                 json_extract($6, at) AS length, json_extract($9, at) AS aggregate_type, json_extract($10, at) AS aggregate_id,
		                 json_extract($11, at) AS event_type, json_extract($12, at) AS causation_id`+element+`, n
		          FROM (SELECT value, key + 1 AS n, '$[' || key || ']' AS at FROM json_each($3)))`
	}
	size := strconv.Itoa(digestSize)
	return d.SQL(`
		INSERT INTO {parked} (consumer, topic, message_id, tenant, digest, envelope, state, due_at, ` + labelColumns + more + `)
		SELECT $1, $2, message_id, tenant, substr($7` + bytes + `, CAST(n - 1 AS integer) * ` + size + ` + 1, ` + size + `),
		       substr($8` + bytes + `, start, length), ` + state + `, {now}, ` + labelColumns + more + `
		FROM (SELECT *` + besides + ` FROM ` + lists + `) AS received
		WHERE true -- or SQLite could parse ON CONFLICT as part of a join
		ORDER BY n
		ON CONFLICT (consumer, message_id, digest) WHERE message_id <> '' DO NOTHING`)
}
