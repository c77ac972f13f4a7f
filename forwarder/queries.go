package forwarder

import (
	"strconv"
	"strings"

	"github.com/watermill-once/once/internal/dialect"
	"github.com/watermill-once/once/internal/outboxrow"
)

type queries struct {
	lookaheadQueries

	read, refill              dialect.Statement
	readWithState, stateAlone dialect.Statement
	readPaused                dialect.Statement
	refillPaused              dialect.Statement
	snapshot                  string
	remove, stays             string
	unchanged, owns           string
	blocked, blockedBy        string
	stillBlocked              string
	removeLogged, logSent     string
	forgetSent                string
	unblock, charge, block    string
	copyDead, removeOne       string
	unblockOne, blockByDead   string
	headless                  string
	renew, joinAlone          string
	replace, elsewhere        string
	enrol, expel, instances   string
	slots                     string
	lease, release            string
	releaseAll, resign        string
	boundedStats              string
}

func newQueries(d dialect.Dialect) queries { //nolint:funlen // SQL stands together
	confirmed := d.Columns("position bigint", "message_id text")
	heads := d.Columns("position bigint", "ordering_key text", "slot smallint")
	charged := d.Columns("position bigint", "message_id text", "attempts bigint", "delay bigint", "error text", "reason text",
		"unknown bool", "successors bigint")
	free := `(owner IS NULL OR lease_until IS NULL OR lease_until < {now} OR owner = $1)`
	anyPosition := `position = ANY ($1::text::bigint[])` // the planner looks into the array, not into a subquery
	if d.SQLite() {
		anyPosition = `position IN {list $1 bigint}`
	}
	// With a CASE, PostgreSQL does not plan a join, which takes twice as long.
	these := anyPosition + `
			AND CASE WHEN (position, message_id) IN (SELECT c.position, c.message_id FROM ` + confirmed + `) THEN 1 = 1 ELSE 1 = 0 END`

	labels, join := outboxrow.Labels(d)

	return queries{
		lookaheadQueries: newLookaheadQueries(d),
		read:             d.Statement("", sweep),
		readWithState:    d.Statement("", stateOfRead+` UNION ALL `+sweep),
		stateAlone:       d.Statement("", stateAlone),
		refill:           d.Statement("", ofKeys),
		readPaused:       d.Statement("", leaveOutPaused(d, sweep, "$8", "$9")),
		refillPaused:     d.Statement("", leaveOutPaused(d, ofKeys, "$6", "$7")),
		snapshot:         snapshotQuery(d),

		// A failover to a replica that lagged behind may repeat a position, so the id counts, too.
		remove: d.SQL(`DELETE FROM {outbox} WHERE ` + these),

		removeLogged: removeLogged(d, these),
		logSent:      logSent(d, `{outbox} AS o WHERE `+these),
		stays:        d.SQL(`SELECT position FROM {outbox} WHERE ` + these),

		// Ids are roughly in the order of time, so later rows than recent ones are not read.
		forgetSent: d.SQL(`
			DELETE FROM {outbox_sent}
			WHERE id IN (SELECT f.id FROM (SELECT id, sent_at FROM {outbox_sent} ORDER BY id LIMIT $2) AS f
			             WHERE f.sent_at < {after $1})`),

		unblock: d.SQL(`
			DELETE FROM {blocked_keys}
			WHERE (position, ordering_key) IN (SELECT c.position, c.ordering_key FROM ` + heads + `
			                                   JOIN {slots} AS s ON s.slot = c.slot AND s.owner = $4)`),

		stillBlocked: d.SQL(`
			SELECT EXISTS (
				SELECT 1 FROM {blocked_keys}
				WHERE (position, ordering_key) IN (SELECT c.position, c.ordering_key FROM ` + heads + `
				                                   JOIN {slots} AS s ON s.slot = c.slot AND s.owner = $4))`),

		charge: d.SQL(`
			UPDATE {outbox} AS o
			SET attempts = c.attempts, due_at = {after c.delay}, last_error = c.error,
			    unknown = o.unknown OR c.unknown, failing_since = COALESCE(o.failing_since, {now})
			FROM ` + charged + `
			WHERE o.position = c.position AND o.message_id = c.message_id AND ` + owned("$9")),

		block: d.SQL(`
			INSERT INTO {blocked_keys} AS h (ordering_key, position, successors_after, reason)
			SELECT o.ordering_key, o.position, c.successors, c.reason
			FROM {outbox} AS o JOIN ` + charged + ` ON o.position = c.position AND o.message_id = c.message_id
			WHERE o.ordering_key IS NOT NULL AND ` + owned("$9") + `
			` + lowerHead),

		// Counts the rows that charge and block should have written. charge increases no number, so
		// it is compared by the due time.
		unchanged: d.SQL(`
			SELECT COUNT(CASE WHEN o.due_at IS NULL OR o.attempts <> c.attempts THEN 1 END),
			       COUNT(CASE WHEN o.ordering_key IS NOT NULL AND NOT EXISTS (
			                        SELECT 1 FROM {blocked_keys} AS h WHERE h.ordering_key = o.ordering_key) THEN 1 END)
			FROM {outbox} AS o JOIN ` + charged + ` ON o.position = c.position AND o.message_id = c.message_id
			WHERE ` + owned("$9")),

		owns: d.SQL(`
			SELECT EXISTS (SELECT 1 FROM {outbox} AS o WHERE o.position = $1 AND o.message_id = $2 AND ` + owned("$3") + `)`),
		blocked:   d.SQL(`SELECT EXISTS (SELECT 1 FROM {blocked_keys} WHERE ordering_key = $1)`),
		blockedBy: d.SQL(`SELECT EXISTS (SELECT 1 FROM {blocked_keys} WHERE ordering_key = $1 AND position = $2)`),

		copyDead: d.SQL(`
			INSERT INTO {outbox_dead} (position, message_id, topic, ordering_key, payload, metadata, created_at,
			                           attempts, last_error, reason, fingerprint, unknown, ` + outboxrow.LabelColumns + `)
			SELECT o.position, ` + outboxrow.MessageID(d) + `, o.topic, o.ordering_key, o.payload, o.metadata, o.created_at,
			       CASE WHEN o.attempts < 2147483647 THEN o.attempts + 1 ELSE o.attempts END, $3, $4, $7, o.unknown OR $5, ` + labels + `
			FROM {outbox} AS o` + join + `
			WHERE o.position = $1 AND o.message_id = $2 AND ` + owned("$6")),

		removeOne:  d.SQL(`DELETE FROM {outbox} WHERE position = $1 AND message_id = $2`),
		unblockOne: d.SQL(`DELETE FROM {blocked_keys} WHERE ordering_key = $1 AND position = $2`),

		blockByDead: d.SQL(`
			INSERT INTO {blocked_keys} AS h (ordering_key, position, successors_after, reason) VALUES ($1, $2, $3, '` + outboxrow.BlockedDead + `')
			` + lowerHead),

		// A key is unblocked in the transaction that removes its first message. This finds keys
		// whose first message was removed by hand.
		headless: d.SQL(`
			SELECT position, ordering_key FROM {blocked_keys}
			WHERE NOT EXISTS (SELECT 1 FROM {outbox} AS o
			                  WHERE o.position = {blocked_keys}.position AND o.ordering_key = {blocked_keys}.ordering_key)
			  AND NOT (reason = '` + outboxrow.BlockedDead + `'
			           AND EXISTS (SELECT 1 FROM {outbox_dead} AS d
			                       WHERE d.position = {blocked_keys}.position AND d.ordering_key = {blocked_keys}.ordering_key))`),

		renew: d.SQL(`UPDATE {forwarders} SET lease_until = {after $2} WHERE owner = $1`),

		joinAlone: joinAlone(d),
		replace: d.SQL(`
			DELETE FROM {forwarders} WHERE destination <> $1 AND lease_until < {now}
			RETURNING destination, {millis lease_until}`),

		elsewhere: d.SQL(`
			SELECT owner, destination, {millis lease_until} FROM {forwarders} WHERE destination <> $1
			ORDER BY lease_until DESC LIMIT 1`),

		enrol: d.SQL(`
			INSERT INTO {forwarders} (owner, lease_until, destination) VALUES ($1, {after $2}, $3)
			ON CONFLICT (owner) DO UPDATE SET lease_until = excluded.lease_until`),

		expel: d.SQL(`
			DELETE FROM {forwarders}
			WHERE owner IN (SELECT owner FROM {forwarders} WHERE lease_until < {now} {skip_locked})`),

		instances: d.SQL(`
			SELECT (SELECT COUNT(*) FROM {forwarders} WHERE owner = $1 OR lease_until > {after $2}), (SELECT COUNT(*) FROM {slots})`),

		// Somebody may have deleted slots, and their messages would wait forever.
		slots: d.SQL(`
			INSERT INTO {slots} (slot)
			WITH RECURSIVE n(slot) AS (SELECT 0 UNION ALL SELECT slot + 1 FROM n WHERE slot < ` + strconv.Itoa(outboxrow.Slots-1) + `)
			SELECT slot FROM n WHERE true -- SQLite could take what follows for a join
			ON CONFLICT (slot) DO NOTHING`),

		// The condition for free slots stands twice, because another instance may have taken a slot
		// since the snapshot of the list.
		lease: d.SQL(`
			UPDATE {slots} SET owner = $1, lease_until = {after $2}
			WHERE slot IN {list $3 smallint} AND owner = $1
			   OR ` + free + ` AND slot IN (
			          SELECT slot FROM {slots}
			          WHERE ` + free + ` AND slot NOT IN {list $3 smallint} AND slot NOT IN {list $5 smallint}
			          ORDER BY slot LIMIT $4)
			RETURNING slot`),

		release: d.SQL(`
			UPDATE {slots} SET owner = NULL, lease_until = NULL WHERE owner = $1 AND slot IN {list $2 smallint}`),

		releaseAll: d.SQL(`UPDATE {slots} SET owner = NULL, lease_until = NULL WHERE owner = $1`),

		resign: d.SQL(`UPDATE {forwarders} SET lease_until = {after -1} WHERE owner = $1`),

		boundedStats: boundedStatsQuery(d),
	}
}

const loggedColumns = `position, message_id, topic, ordering_key, payload, metadata, created_at`

// removeLogged moves rows to the sent log of PostgreSQL, and returns the numbers of deleted and
// inserted rows. Repeated with the same rows, it changes nothing.
func removeLogged(d dialect.Dialect, condition string) string {
	if d.SQLite() {
		return ""
	}
	_, join := outboxrow.Labels(d)
	return d.SQL(`WITH gone AS (DELETE FROM {outbox} WHERE ` + condition + ` RETURNING ` + loggedColumns + `),
		logged AS (` + logSent(d, `gone AS o`+join) + ` RETURNING 1)
		SELECT (SELECT COUNT(*) FROM gone), (SELECT COUNT(*) FROM logged)`)
}

// logSent copies rows to the sent log.
func logSent(d dialect.Dialect, from string) string {
	labels, _ := outboxrow.Labels(d)
	return d.SQL(`INSERT INTO {outbox_sent} (` + loggedColumns + `, ` + outboxrow.LabelColumns + `)
		SELECT ` + strings.Replace(loggedColumns, "message_id", outboxrow.MessageID(d), 1) + `, ` + labels + `
		FROM ` + from + ` ORDER BY position`)
}

// If the key is already blocked, the message with the lower position is its head.
const lowerHead = `ON CONFLICT (ordering_key) DO UPDATE
	SET position = excluded.position, reason = excluded.reason,
	    successors_after = CASE WHEN excluded.successors_after < h.successors_after
	                            THEN excluded.successors_after ELSE h.successors_after END
	WHERE excluded.position <= h.position`

// owned is true if the slot of row o is leased to the owner in param. A forwarder that has lost a
// slot must not overwrite the records of the new owner.
func owned(param string) string {
	return `EXISTS (SELECT 1 FROM {slots} AS s WHERE s.slot = o.slot AND s.owner = ` + param + `)`
}
