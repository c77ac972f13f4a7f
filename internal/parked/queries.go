package parked

import (
	"strconv"

	"github.com/watermill-once/once/internal/dialect"
)

// queries are the statements of the table, for PostgreSQL and SQLite alike.
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
	briefly           string
	enter             string
	applied           string

	manyQueries
	claimQueries

	order     orderQueries
	consumers consumerQueries
}

func newQueries(d dialect.Dialect) queries {
	among, end := chosen(d)
	clock, briefly := "{millis now()}", "SET LOCAL lock_timeout = 1000"
	if d.SQLite() { // its clock is in milliseconds as it is, and it has one writer
		clock, briefly = "{now}", ""
	}
	return queries{
		insertWaiting: d.SQL(`
			INSERT INTO {parked} (consumer, topic, message_id, tenant, digest, envelope, state, priority_class, due_at,
			                      attempts, rounds, error, error_type, fingerprint, first_failed_at, last_failed_at)
			VALUES ($1, $2, $3, $4, $5, $6, 'waiting', CASE WHEN CAST($7 AS bigint) > 0 THEN 'retry' ELSE 'live' END,
			        {after $7}, $8, $9, $10, $11, $12,
			        CASE WHEN $13 THEN {now} END, CASE WHEN $13 THEN {now} END)
			ON CONFLICT (consumer, message_id, digest) WHERE message_id <> '' DO NOTHING`),

		// A row that waits is overruled: this attempt is the later knowledge. One
		// that is in hand is not: that attempt comes after this one, and may succeed.
		// A final state is left alone. Of two copies the one that could be decoded
		// is kept.
		insertQuarantined: d.SQL(`
			INSERT INTO {parked} AS p (consumer, topic, message_id, tenant, digest, envelope, state, due_at,
			                           attempts, reason, error, error_type, fingerprint, first_failed_at, last_failed_at)
			VALUES ($1, $2, $3, $4, $5, $6, 'quarantined', {now}, $7, $8, $9, $10, $11, {now}, {now})
			ON CONFLICT (consumer, message_id, digest) WHERE message_id <> '' DO UPDATE
			SET state = 'quarantined', owner = NULL, token = NULL,
			    envelope = CASE WHEN p.reason = 'undecodable' THEN excluded.envelope ELSE p.envelope END,
			    dedup_key = CASE WHEN p.reason = 'undecodable' THEN NULL ELSE p.dedup_key END,
			    attempts = CASE WHEN p.attempts < ` + most + ` - excluded.attempts THEN p.attempts + excluded.attempts ELSE ` + most + ` END,
			    reason = excluded.reason, error = excluded.error,
			    error_type = excluded.error_type, fingerprint = excluded.fingerprint,
			    first_failed_at = COALESCE(p.first_failed_at, excluded.first_failed_at),
			    last_failed_at = excluded.last_failed_at
			WHERE p.state IN ('waiting', 'quarantined') AND p.token IS NULL
			  AND (excluded.reason <> 'undecodable' OR p.reason = 'undecodable')
			RETURNING id`),

		// What is claimed is due when its lease ends, and so is not late.
		backlog: d.SQL(`
			SELECT COUNT(*), COALESCE(` + clock + ` - MIN(CASE WHEN due_at <= {now} THEN {millis due_at} END), 0),
			       (SELECT COUNT(*) FROM (SELECT 1 FROM {parked} WHERE state = 'held' LIMIT 100000) AS held),
			       (SELECT COUNT(*) FROM (SELECT 1 FROM {parked} WHERE ordering_key IS NOT NULL
			                              AND ` + heads + ` AND state = 'quarantined' LIMIT 100000) AS keys)
			FROM (SELECT due_at FROM (SELECT due_at FROM {parked} WHERE state = 'waiting' AND crashes > 0
			                          ORDER BY consumer, topic, due_at LIMIT 100000) AS claimed
			      UNION ALL
			      SELECT due_at FROM (SELECT due_at FROM {parked} WHERE state = 'waiting' AND crashes = 0
			                          ORDER BY consumer, topic, priority_class, tenant, due_at LIMIT 100000) AS fresh
			      LIMIT 100000) AS waiting`),

		// Not what is just being settled: that may take its rows in another order.
		extend: d.SQL(`
			UPDATE {parked} SET due_at = {after $3}
			WHERE id ` + among + `
				SELECT id FROM {parked}
				WHERE state = 'waiting' AND id {among $1 bigint} AND token = $2
				{skip_locked}` + end + `
			RETURNING id`),

		// The handler returned: whatever ended a process before, it did not.
		postpone: d.SQL(`
			UPDATE {parked}
			SET ordering_key = CASE WHEN $9 THEN ordering_key END,
			    priority_class = 'retry', due_at = {after $3}, owner = NULL, token = NULL, crashes = 0, attempts = $4, rounds = $5,
			    error = $6, error_type = $7, fingerprint = $8,
			    first_failed_at = COALESCE(first_failed_at, {now}), last_failed_at = {now}
			WHERE id = $1 AND token = $2 AND state = 'waiting'`),

		// What it waits for may be behind it in the order of its key.
		postponeEarly: d.SQL(`
			UPDATE {parked}
			SET ordering_key = NULL, priority_class = 'retry', due_at = {after $3}, owner = NULL, token = NULL, crashes = crashes - 1,
			    early_since = COALESCE(early_since, {now}), early_of = $4, early_version = $5
			WHERE id = $1 AND token = $2 AND state = 'waiting'`),

		// The row of an aggregate's last version, locked. Before there is one, its
		// place is: who applies the first version at this moment is waited for
		// too.
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
			                      early_since, early_of, early_version)
			VALUES ($1, $2, $3, $4, $5, $6, 'waiting', 'retry', {after $7}, {now}, $8, $9)
			ON CONFLICT (consumer, message_id, digest) WHERE message_id <> '' DO NOTHING`),

		// crashes stay, but for this claim's own: in quarantine they are part of
		// the story, and a replay begins with none.
		quarantineClaim: d.SQL(`
			UPDATE {parked}
			SET state = 'quarantined', owner = NULL, token = NULL, crashes = crashes - 1, attempts = $3, reason = $4,
			    ordering_key = CASE WHEN $8 THEN ordering_key END, error = $5, error_type = $6, fingerprint = $7,
			    first_failed_at = COALESCE(first_failed_at, {now}), last_failed_at = {now}
			WHERE id = $1 AND token = $2 AND state = 'waiting'
			RETURNING id`),

		briefly: briefly,

		// Waits for a transaction that has entered the message and is not over.
		enter: d.SQL(`
			INSERT INTO {inbox} (message_id, consumer, digest)
			SELECT message_id, consumer, digest FROM {parked} WHERE id = $1
			ON CONFLICT (message_id, consumer) DO NOTHING`),

		// The inbox's digest is that of the payload alone.
		applied: d.SQL(`
			SELECT EXISTS (SELECT 1 FROM {parked} AS p JOIN {inbox} AS i
			               ON i.message_id = p.message_id AND i.consumer = p.consumer
			               WHERE p.id = $1 AND i.digest = $2)`),

		manyQueries:  newManyQueries(d),
		claimQueries: newClaimQueries(d, clock),

		order:     newOrderQueries(d),
		consumers: newConsumerQueries(d),
	}
}

// chosen is what stands around the query for the ids of an update. PostgreSQL does
// not know how few they are, and would join with the whole table if it were not
// given an array.
func chosen(d dialect.Dialect) (among, end string) {
	if d.SQLite() {
		return `IN (`, `)`
	}
	return `= ANY (ARRAY(`, `))`
}

// Undecodable says that the message is in the raw form of a transport that could
// not decode it. An edited one is what somebody has made of that.
const Undecodable = `(reason = 'undecodable' AND edited_from IS NULL)`
