package parkedrows

import (
	"strconv"

	"github.com/watermill-once/once/internal/dialect"
)

type queries struct {
	insertWaiting     string
	insertQuarantined string
	backlog           string
	extend            string
	postpone          string
	postponeEarly     string
	insertEarly       string
	lockVersion       string
	unlockVersion     string
	quarantineClaim   string
	lockTimeout       string
	enter             string
	leave             string
	tombstone         string
	applied           string

	manyQueries
	unchangedQueries
	deleteQueries
	claimQueries

	order     orderQueries
	consumers consumerQueries
	breaker   breakerQueries

	paused     dialect.Statement // the paused consumers, and the limits that operators have set
	takeStarts dialect.Statement
}

// pausedQuery returns pauses, and limits, whose per_second is above 0.
const pausedQuery = `
	SELECT consumer, topic, {millis probe_at} - {clock}, probes, prober, fingerprint, CAST(0 AS double precision), 0 FROM {consumer_pauses}
	UNION ALL
	SELECT consumer, topic, NULL, 0, '', '', per_second, burst FROM {consumer_limits} WHERE per_second > 0 AND burst > 0`

// lockTimeout returns a statement that limits the waits for locks in a transaction to a second.
func lockTimeout(d dialect.Dialect) string {
	if d.SQLite() { // has one writer at a time
		return ""
	}
	return "SET LOCAL lock_timeout = 1000"
}

func newQueries(d dialect.Dialect) queries {
	among, end := chosen(d)
	return queries{
		insertWaiting: d.SQL(`
			INSERT INTO {parked} (consumer, topic, message_id, tenant, digest, envelope, state, priority_class, due_at,
			                      attempts, rounds, error, error_type, fingerprint, first_failed_at, last_failed_at, ` + labelColumns + `)
			VALUES ($1, $2, $3, $4, $5, $6, 'waiting', CASE WHEN CAST($7 AS bigint) > 0 THEN 'retry' ELSE 'live' END,
			        {after $7}, $8, $9, $10, $11, $12,
			        CASE WHEN $13 THEN {now} END, CASE WHEN $13 THEN {now} END, $14, $15, $16, $17)
			ON CONFLICT (consumer, message_id, digest) WHERE message_id <> '' DO NOTHING`),

		// The message may have a row already. A waiting row becomes quarantined, because this
		// attempt is the latest attempt. A claimed row does not change, because its attempt is
		// later and may succeed. A final state does not change. If only one of two copies could
		// be decoded, that copy is kept.
		insertQuarantined: d.SQL(`
			INSERT INTO {parked} AS p (consumer, topic, message_id, tenant, digest, envelope, state, due_at,
			                           attempts, reason, error, error_type, fingerprint, stack, first_failed_at, last_failed_at,
			                           ` + labelColumns + `)
			VALUES ($1, $2, $3, $4, $5, $6, 'quarantined', {now}, $7, $8, $9, $10, $11, $12, {now}, {now}, $13, $14, $15, $16)
			ON CONFLICT (consumer, message_id, digest) WHERE message_id <> '' DO UPDATE
			SET state = 'quarantined', owner = NULL, token = NULL,
			    envelope = CASE WHEN p.reason = 'undecodable' THEN excluded.envelope ELSE p.envelope END,
			    dedup_key = CASE WHEN p.reason = 'undecodable' THEN NULL ELSE p.dedup_key END,
			    attempts = CASE WHEN p.attempts < ` + maxCountText + ` - excluded.attempts THEN p.attempts + excluded.attempts
			                    ELSE ` + maxCountText + ` END,
			    reason = excluded.reason, error = excluded.error,
			    error_type = excluded.error_type, fingerprint = excluded.fingerprint, stack = excluded.stack,
			    first_failed_at = COALESCE(p.first_failed_at, excluded.first_failed_at),
			    last_failed_at = excluded.last_failed_at
			WHERE p.state IN ('waiting', 'quarantined') AND p.token IS NULL
			  AND (excluded.reason <> 'undecodable' OR p.reason = 'undecodable')
			RETURNING id`),

		// A claimed row is due when its lease ends, so it does not add to the lag.
		backlog: d.SQL(`
			SELECT COUNT(*), COALESCE({clock} - MIN(CASE WHEN due_at <= {now} THEN {millis due_at} END), 0),
			       (SELECT COUNT(*) FROM (SELECT 1 FROM {parked} WHERE state = 'held' LIMIT 100000) AS held),
			       (SELECT COUNT(*) FROM (SELECT 1 FROM {parked} WHERE ordering_key IS NOT NULL
			                              AND ` + heads + ` AND state = 'quarantined' LIMIT 100000) AS keys),
			       (SELECT COUNT(*) FROM {consumer_pauses})
			FROM (SELECT due_at FROM (SELECT due_at FROM {parked} WHERE state = 'waiting' AND crashes > 0
			                          ORDER BY consumer, topic, due_at LIMIT 100000) AS claimed
			      UNION ALL
			      SELECT due_at FROM (SELECT due_at FROM {parked} WHERE state = 'waiting' AND crashes = 0
			                          ORDER BY consumer, topic, priority_class, tenant, due_at LIMIT 100000) AS fresh
			      LIMIT 100000) AS waiting`),

		// Rows that are being settled are skipped: that transaction may lock rows in a different
		// order, so waiting for it could end in a deadlock.
		extend: d.SQL(`
			UPDATE {parked} SET due_at = {after $3}
			WHERE id ` + among + `
				SELECT id FROM {parked}
				WHERE state = 'waiting' AND id {among $1 bigint} AND token = $2
				{skip_locked}` + end + `
			RETURNING id`),

		// The handler has returned, so this message is not the cause of the earlier crashes.
		postpone: d.SQL(`
			UPDATE {parked}
			SET ordering_key = CASE WHEN $9 THEN ordering_key END,
			    priority_class = 'retry', due_at = {after $3}, owner = NULL, token = NULL, crashes = 0, attempts = $4, rounds = $5,
			    error = $6, error_type = $7, fingerprint = $8,
			    first_failed_at = COALESCE(first_failed_at, {now}), last_failed_at = {now}
			WHERE id = $1 AND token = $2 AND state = 'waiting'`),

		// The message with the missing version may have the same ordering key. So this row gives up
		// its place in the order of the key.
		postponeEarly: d.SQL(`
			UPDATE {parked}
			SET ordering_key = NULL, priority_class = 'retry', due_at = {after $3}, owner = NULL, token = NULL, crashes = crashes - 1,
			    early_since = COALESCE(early_since, {now}), early_of = $4, early_version = $5
			WHERE id = $1 AND token = $2 AND state = 'waiting'`),

		// This locks the row with the last version of an aggregate. An aggregate without a version
		// gets a placeholder, whose insert waits for another transaction that inserts the first
		// version.
		lockVersion: d.SQL(`
			INSERT INTO {versions} AS v (consumer, aggregate_type, aggregate_id, version, complete_from, applied_at)
			VALUES ($1, $2, $3, ` + strconv.Itoa(noVersion) + `, ` + strconv.Itoa(noVersion) + `, {now})
			ON CONFLICT (consumer, aggregate_type, aggregate_id) DO UPDATE SET version = v.version
			RETURNING version`),

		unlockVersion: d.SQL(`
			DELETE FROM {versions}
			WHERE consumer = $1 AND aggregate_type = $2 AND aggregate_id = $3 AND version = ` + strconv.Itoa(noVersion)),

		insertEarly: d.SQL(`
			INSERT INTO {parked} (consumer, topic, message_id, tenant, digest, envelope, state, priority_class, due_at,
			                      early_since, early_of, early_version, ` + labelColumns + `)
			VALUES ($1, $2, $3, $4, $5, $6, 'waiting', 'retry', {after $7}, {now}, $8, $9, $10, $11, $12, $13)
			ON CONFLICT (consumer, message_id, digest) WHERE message_id <> '' DO NOTHING`),

		// The entry does not show the crash that this claim has counted in advance.
		quarantineClaim: d.SQL(`
			UPDATE {parked}
			SET state = 'quarantined', owner = NULL, token = NULL, crashes = crashes - 1, attempts = $3, reason = $4,
			    ordering_key = CASE WHEN $9 THEN ordering_key END, error = $5, error_type = $6, fingerprint = $7, stack = $8,
			    first_failed_at = COALESCE(first_failed_at, {now}), last_failed_at = {now}
			WHERE id = $1 AND token = $2 AND state = 'waiting'
			RETURNING id`),

		lockTimeout: lockTimeout(d),

		// This waits for the end of another transaction that has inserted the message into the
		// inbox.
		enter: d.SQL(`
			INSERT INTO {inbox} (message_id, consumer, digest)
			SELECT message_id, consumer, digest FROM {parked} WHERE id = $1
			ON CONFLICT (message_id, consumer) DO NOTHING`),

		leave: d.SQL(`
			DELETE FROM {inbox} WHERE (message_id, consumer) IN (SELECT message_id, consumer FROM {parked} WHERE id = $1)`),

		tombstone: d.SQL(`
			INSERT INTO {inbox} (message_id, consumer, digest) VALUES ($1, $2, $3)
			ON CONFLICT (message_id, consumer) DO NOTHING`),

		// The digest in the inbox is the digest of the payload alone.
		applied: d.SQL(`
			SELECT EXISTS (SELECT 1 FROM {parked} AS p JOIN {inbox} AS i
			               ON i.message_id = p.message_id AND i.consumer = p.consumer
			               WHERE p.id = $1 AND i.digest = $2)`),

		manyQueries:      newManyQueries(d),
		unchangedQueries: newUnchangedQueries(d),
		deleteQueries:    newDeleteQueries(d),
		claimQueries:     newClaimQueries(d),

		order:     newOrderQueries(d),
		consumers: newConsumerQueries(d),
		breaker:   newBreakerQueries(d),

		paused:     d.Statement("", pausedQuery),
		takeStarts: newTakeStarts(d),
	}
}

// chosen returns the SQL to put before and after a subquery of ids. PostgreSQL cannot estimate how
// few ids it returns, and could join them with the whole table. As an array, it does not.
func chosen(d dialect.Dialect) (among, end string) {
	if d.SQLite() {
		return `IN (`, `)`
	}
	return `= ANY (ARRAY(`, `))`
}

// Undecodable is the SQL condition of rows with the raw form of a message that its transport could
// not decode. An edit replaces the raw form.
const Undecodable = `(reason = 'undecodable' AND edited_from IS NULL)`

// deleteQueries are the statements that delete rows.
type deleteQueries struct {
	remove      string
	forget      string
	removeQueue string
}

func newDeleteQueries(d dialect.Dialect) deleteQueries {
	return deleteQueries{
		remove: d.SQL(`DELETE FROM {parked} WHERE ` + claimed + ` RETURNING id`),

		forget: DeleteRows(d, `
				SELECT id FROM {parked}
				WHERE state || '' = 'resolved' AND finished_at < {after $3} AND consumer = $1 AND topic = $2 AND replays = 0
				ORDER BY finished_at LIMIT $4`, ``),

		// Replayed rows and claimed rows stay.
		removeQueue: DeleteRows(d, `
				SELECT id FROM {parked}
				WHERE consumer = $1 AND topic = $2 AND state IN ('waiting', 'held') AND token IS NULL AND replays = 0
				LIMIT $3`, ``),
	}
}

// DeleteRows returns a statement that deletes the rows whose ids query returns, except locked rows.
// returning is a RETURNING clause, or "".
func DeleteRows(d dialect.Dialect, query, returning string) string {
	among, end := chosen(d)
	return d.SQL(`
			DELETE FROM {parked} WHERE id ` + among + query + `
				{skip_locked}` + end + ` ` + returning)
}

// unchangedQueries look for rows that the database has not changed, although a statement had to
// change them.
type unchangedQueries struct {
	claimed  string // returns the rows of claims
	stored   string // reports whether a message has a row
	unstored string
	entered  string // reports whether the inbox has the message of a row, if the row exists
}

func newUnchangedQueries(d dialect.Dialect) unchangedQueries {
	return unchangedQueries{
		claimed: d.SQL(`SELECT id FROM {parked} WHERE ` + claimed),
		stored: d.SQL(`
			SELECT EXISTS (SELECT 1 FROM {parked} WHERE consumer = $1 AND message_id = $2 AND digest = $3 AND message_id <> '')`),
		unstored: newUnstored(d),
		entered: d.SQL(`
			SELECT NOT EXISTS (SELECT 1 FROM {parked} WHERE id = $1)
			    OR EXISTS (SELECT 1 FROM {parked} AS p JOIN {inbox} AS i
			               ON i.message_id = p.message_id AND i.consumer = p.consumer WHERE p.id = $1)`),
	}
}

// newUnstored returns a query for the number of messages that have no row after newReceive. It
// leaves out messages without an id.
func newUnstored(d dialect.Dialect) string {
	bytes, list := `::bytea`, `unnest($2::text::text[]) WITH ORDINALITY AS list (message_id, n)`
	if d.SQLite() {
		bytes, list = ``, `(SELECT value AS message_id, key + 1 AS n FROM json_each($2)) AS list`
	}
	size := strconv.Itoa(digestSize)
	return d.SQL(`
		SELECT COUNT(*) FROM ` + list + `
		WHERE message_id <> '' AND NOT EXISTS (
			SELECT 1 FROM {parked} AS p
			WHERE p.consumer = $1 AND p.message_id = list.message_id AND p.message_id <> ''
			  AND p.digest = substr($3` + bytes + `, CAST(n - 1 AS integer) * ` + size + ` + 1, ` + size + `))`)
}

type manyQueries struct {
	receive string
	inOrder string
	resolve string
	release string
}

// claimed compares id and token together, because this process may have two claims of one row.
const claimed = `id {among $1 bigint} AND CAST(id AS text) || ' ' || token {among $2 text} AND state = 'waiting'`

func newManyQueries(d dialect.Dialect) manyQueries {
	return manyQueries{
		receive: newReceive(d, "", "", `'waiting'`),

		// The caller has locked the keys. The first message of a key becomes its head, if the key
		// has no head and no held row.
		inOrder: newReceive(d, "ordering_key", `, row_number() OVER (PARTITION BY ordering_key ORDER BY n) AS nth`, `
			       CASE WHEN nth = 1
			             AND (SELECT 1 FROM {parked} AS p WHERE p.consumer = $1 AND p.topic = $2
			                  AND p.ordering_key = received.ordering_key AND p.`+heads+`) IS NULL
			             AND `+firstHeld("$1", "$2", "received.ordering_key")+` IS NULL
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

// newReceive returns the statement that stores several messages in their order, with lists of
// values in $3 to $6 and $9 to $12, and in $13 for column, if any. state is the SQL expression of a
// row's state, and besides adds columns that it uses.
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
