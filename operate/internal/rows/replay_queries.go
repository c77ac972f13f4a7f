package rows

import (
	"github.com/watermill-once/once/internal/chain"
	"github.com/watermill-once/once/internal/dialect"
)

type replayQueries struct {
	lock     string // empty for SQLite, which has one writer at a time
	running  string
	insert   string
	get      string
	list     string
	row      string
	outcomes string
	count    string
	resume   string
	extend   string
	retake   string
	advance  string
	end      string
	stop     string
}

func newReplayQueries(d dialect.Dialect) replayQueries {
	clock := `clock_timestamp()`
	if d.SQLite() { // {now} is the time of the statement, and a transaction waits for other writers when it begins
		clock = `{now}`
	}
	q := replayQueries{
		// An empty consumer name stands for every consumer.
		running: d.SQL(`
			SELECT id FROM {replays}
			WHERE source = 'quarantine' AND state = 'running' AND lease_until > {now} AND id <> $2
			  AND ($1 = '' OR consumer = '' OR consumer = $1)
			LIMIT 1`),

		insert: d.SQL(`
			INSERT INTO {replays} (source, consumer, filter, plan, actor, why, state, total, until_id, token, lease_until)
			VALUES ($1, $2, $3, $4, $5, $6, 'running', $7, $8, $9, {after $10})
			RETURNING id`),

		get: d.SQL(`SELECT ` + replayColumns + ` FROM {replays} AS r WHERE r.id = $1`),

		list: d.SQL(`SELECT ` + replayColumns + ` FROM {replays} AS r WHERE r.id < $1 ORDER BY r.id DESC LIMIT $2`),

		// For the process that runs the replay, which reads the outcomes separately.
		row: d.SQL(`SELECT ` + replayRow + `, 0, 0, 0 FROM {replays} AS r WHERE r.id = $1`),

		// With replay_id in the condition, PostgreSQL could read all entries of the replay through
		// its index. An entry of a later replay has failed in this one.
		outcomes: d.SQL(`
			SELECT id, CASE WHEN replay_id = $2 THEN CASE WHEN ` + staleAgain + ` THEN 'stale' ELSE state END ELSE '' END
			FROM {parked} WHERE id {among $1 bigint}`),

		// A single statement counts each entry once, even if it is resolved meanwhile.
		count: d.SQL(`
			SELECT id, 0, 0 FROM {parked} WHERE replay_id = $1 AND state = 'waiting'
			UNION ALL
			SELECT 0, COUNT(*), 0 FROM {parked} WHERE replay_id = $1 AND state = 'resolved'
			UNION ALL
			SELECT 0, 0, COUNT(*) FROM {parked} WHERE replay_id = $1 AND ` + staleAgain),

		// This changes no row while another process has the lease.
		resume: d.SQL(`
			UPDATE {replays}
			SET state = 'running', stop_reason = '', ended_at = NULL, token = $2, lease_until = {after $3}, failed = $4
			WHERE id = $1 AND state <> 'finished' AND (state <> 'running' OR lease_until <= {now})`),

		// A lease that has ended is not extended, because another replay may have begun. It may end
		// while the statement waits for a lock, so the condition uses the clock: {now} is the start
		// of the transaction.
		extend: d.SQL(`
			UPDATE {replays} SET lease_until = {after $3}
			WHERE id = $1 AND token = $2 AND state = 'running' AND lease_until > ` + clock),

		// The caller must have the lock, and no other replay may be running.
		retake: d.SQL(`
			UPDATE {replays} SET lease_until = {after $3} WHERE id = $1 AND token = $2 AND state = 'running'`),

		advance: d.SQL(`
			UPDATE {replays} SET after_id = $2, replayed = replayed + $3, lease_until = {after $4} WHERE id = $1`),

		end: d.SQL(`
			UPDATE {replays}
			SET state = $3, stop_reason = $4, resolved = $5, failed = $6, stale = $7, token = NULL, lease_until = NULL, ended_at = {now}
			WHERE id = $1 AND token = $2 AND state = 'running'`),

		// Without a token, because another process runs the replay, or died with it.
		stop: d.SQL(`
			UPDATE {replays}
			SET state = 'stopped', stop_reason = $2, token = NULL, lease_until = NULL, ended_at = {now}
			WHERE id = $1 AND state = 'running'`),
	}
	if !d.SQLite() {
		q.lock = d.SQL(`LOCK TABLE {replays} IN SHARE ROW EXCLUSIVE MODE`)
	}
	return q
}

// staleAgain is true for an entry whose replay did not run the handler, because its version is
// stale, also if it is discarded then.
const staleAgain = `state IN ('quarantined', 'discarded') AND reason = '` + chain.ReasonStale + `'`

const replayRow = `r.id, r.source, r.consumer, r.filter, r.plan, r.actor, r.why,
	CASE WHEN r.state = 'running' AND r.lease_until <= {now} THEN 'abandoned' ELSE r.state END,
	r.stop_reason, r.total, r.until_id, r.after_id, r.replayed, r.resolved, r.failed, r.stale,
	{millis r.started_at}, {millis r.ended_at}`

// replayColumns has replayRow, with the final counts, and those of an unfinished replay.
const replayColumns = replayRow + `,
	CASE WHEN r.state = 'finished' THEN 0 ELSE (SELECT COUNT(*) FROM {parked} WHERE replay_id = r.id AND state = 'waiting') END,
	CASE WHEN r.state = 'finished' THEN 0 ELSE (SELECT COUNT(*) FROM {parked} WHERE replay_id = r.id AND state = 'resolved') END,
	CASE WHEN r.state = 'finished' THEN 0 ELSE (SELECT COUNT(*) FROM {parked} WHERE replay_id = r.id AND ` + staleAgain + `) END`
