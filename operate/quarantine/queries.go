package quarantine

import (
	"github.com/watermill-once/once/internal/dialect"
	"github.com/watermill-once/once/internal/parkedrows"
)

type queries struct {
	get            string
	replay         string
	discard        string
	audit          string
	last           string
	idInUse        string
	insertEdited   string
	insertImported string
	known          string
	makeDue        string
	auditReplayed  string
	forgetInbox    string
}

func newQueries(d dialect.Dialect) queries {
	return queries{
		get: d.SQL(`SELECT ` + entryColumns(`error`, `stack`, `digest, envelope`) + ` FROM {parked} WHERE id = $1`),

		replay: d.SQL(`
			UPDATE {parked}
			SET state = 'waiting', priority_class = 'replay', due_at = {now}, attempts = 0, rounds = 0, crashes = 0,
			    replays = ` + parkedrows.OneMore("replays") + `,
			    replay_id = NULL, early_since = NULL, early_of = NULL, early_version = NULL
			WHERE id = $1 AND state = 'quarantined'
			RETURNING consumer, message_id, ` + parkedrows.Undecodable),

		discard: d.SQL(`
			UPDATE {parked} SET state = 'discarded', finished_at = {now}
			WHERE id = $1 AND state = 'quarantined'
			RETURNING consumer, message_id, envelope`),

		audit: d.SQL(`
			INSERT INTO {audit} (actor, action, subject, consumer, message_id, why)
			VALUES ($1, $2, $3, $4, $5, $6)`),

		last: d.SQL(`SELECT COALESCE(MAX(id), 0) FROM {parked} WHERE state = 'quarantined'`),

		idInUse: d.SQL(`
			SELECT EXISTS (SELECT 1 FROM {parked} WHERE message_id = $1 AND consumer = $2 AND message_id <> '')
			    OR EXISTS (SELECT 1 FROM {inbox} WHERE message_id = $1 AND consumer = $2)`),

		// An edited entry that is due counts as replayed, so that its row is kept when it is
		// resolved. It takes the place of the old one in the order of the key.
		insertEdited: d.SQL(`
			INSERT INTO {parked} (consumer, topic, message_id, ordering_key, tenant, digest, envelope, state, priority_class, due_at, replays,
			                      reason, error, error_type, fingerprint, stack, first_failed_at, last_failed_at, edited_from,
			                      aggregate_type, aggregate_id, event_type, causation_id)
			SELECT consumer, topic, $2, ordering_key, $3, $4, $5, CASE WHEN $6 THEN 'quarantined' ELSE 'waiting' END, 'replay', {now},
			       CASE WHEN $6 THEN 0 ELSE 1 END, reason, error, error_type, fingerprint, stack, first_failed_at, last_failed_at, id,
			       $7, $8, $9, $10
			FROM {parked} WHERE id = $1
			RETURNING id`),

		// Any conflict means that the table has the entry. The one that an edited entry replaced is
		// in another database, so edited_from is 0.
		insertImported: d.SQL(`
			INSERT INTO {parked} (consumer, topic, message_id, tenant, digest, envelope, state, due_at,
			                      attempts, crashes, replays, reason, error, error_type, fingerprint, stack,
			                      created_at, first_failed_at, last_failed_at, origin, edited_from,
			                      aggregate_type, aggregate_id, event_type, causation_id)
			VALUES ($1, $2, $3, $4, $5, $6, 'quarantined', {now}, $7, $8, $9, $10, $11, $12, $13, $14,
			        {from_millis $15}, {from_millis $16}, {from_millis $17}, $18, CASE WHEN $19 THEN 0 END, $20, $21, $22, $23)
			ON CONFLICT DO NOTHING
			RETURNING id`),

		// For an entry without a message id from this table. An imported one is found by its
		// origin.
		known: d.SQL(`
			SELECT EXISTS (SELECT 1 FROM {parked} WHERE id = $1 AND message_id = '' AND consumer = $2 AND digest = $3
			               AND {millis created_at} = $4 AND origin IS NULL)`),

		// The caller appends the condition of the states. A resolved entry loses its ordering key,
		// because later messages of it were handled.
		makeDue: d.SQL(`
			UPDATE {parked}
			SET state = 'waiting', priority_class = 'replay', due_at = {now}, attempts = 0, rounds = 0, crashes = 0,
			    replays = ` + parkedrows.OneMore("replays") + `,
			    replay_id = $1, finished_at = NULL, early_since = NULL, early_of = NULL, early_version = NULL,
			    ordering_key = CASE WHEN state = 'quarantined' THEN ordering_key END
			WHERE id {among $2 bigint} AND `),

		auditReplayed: d.SQL(`
			INSERT INTO {audit} (actor, action, subject, consumer, message_id, why, replay_id)
			SELECT $1, 'replay', 'parked:' || id, consumer, message_id, $2, replay_id FROM {parked}
			WHERE id {among $3 bigint}
			ORDER BY id`),

		forgetInbox: d.SQL(`
			DELETE FROM {inbox} WHERE (message_id, consumer) IN (
				SELECT message_id, consumer FROM {parked} WHERE id {among $1 bigint} AND message_id <> '')`),
	}
}
