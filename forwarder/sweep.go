package forwarder

import "github.com/watermill-once/once/internal/dialect"

// A sweep finds a row without a due time by its position, and a row with a due
// time when it is due. It takes no lock and waits for no transaction. One
// statement sees one snapshot, so that a message is never read before an earlier
// message of its key.
//
// The condition excludes rows that must not fill the batch: rows in memory,
// successors of a blocked key, and rows that the scheduler cannot take now.
//
// Parameters: $1 from position, $2 positions in memory, $3 slots, $4 excluded
// keys (read) or wanted keys (refill), $5 limit; read also has $6 limit of due
// rows, $7 excluded topics of rows without a key.
const (
	columnsOfRow = `position, slot, message_id, topic, COALESCE(ordering_key, '') AS ordering_key, payload,
	                CAST(metadata AS text) AS metadata, attempts,
	                CASE WHEN ordering_key IS NOT NULL AND ` + anyBlocked + `
	                     THEN (SELECT h.successors_after FROM {blocked_keys} AS h
	                           WHERE h.ordering_key = o.ordering_key AND h.position = o.position) END AS successors_after`

	// There is mostly no blocked key, and this one check saves a check of each row.
	anyBlocked = `EXISTS (SELECT 1 FROM {blocked_keys})`

	// For one CASE without a join, PostgreSQL's planner expects half of the rows
	// and walks along the index until it has enough. Otherwise it multiplies
	// guesses about a table that grows and shrinks between two runs of ANALYZE,
	// and sorts the whole backlog for every batch.
	mayBeRead = `CASE WHEN position IN {list $2 bigint} OR slot NOT IN {list $3 smallint} THEN 1 = 0
	                  WHEN ordering_key IS NULL THEN topic NOT IN {list $7 text}
	                  WHEN ordering_key IN {list $4 text} THEN 1 = 0
	                  ELSE ` + notBlocked + ` END`

	mayBeRefilled = `CASE WHEN position IN {list $2 bigint} OR slot NOT IN {list $3 smallint} OR ordering_key IS NULL THEN 1 = 0
	                      WHEN ordering_key NOT IN {list $4 text} THEN 1 = 0
	                      ELSE ` + notBlocked + ` END`

	notBlocked = `CASE WHEN ` + anyBlocked + `
	                THEN COALESCE((SELECT h.position FROM {blocked_keys} AS h WHERE h.ordering_key = o.ordering_key), position) = position
	                ELSE 1 = 1 END`

	inOrder = `SELECT ` + columnsOfRow + `, 0 AS due FROM {outbox} AS o
	           WHERE position > $1 AND CASE WHEN due_at IS NULL THEN ` + mayBeRead + ` ELSE 1 = 0 END
	           ORDER BY position LIMIT $5`

	whenDue = `SELECT ` + columnsOfRow + `, 1 AS due FROM {outbox} AS o
	           WHERE due_at <= {now} AND ` + mayBeRead + `
	           ORDER BY due_at, position LIMIT $6`

	ofKeys = `SELECT ` + columnsOfRow + `, 0 AS due FROM {outbox} AS o
	          WHERE position > $1 AND CASE WHEN due_at IS NULL THEN ` + mayBeRefilled + ` ELSE 1 = 0 END
	          ORDER BY position LIMIT $5`
)

// readQuery returns due rows first, because a backlog of large messages could
// keep them out of every batch.
func readQuery(d dialect.Dialect) string {
	return d.SQL(`SELECT * FROM (` + whenDue + `) AS a UNION ALL SELECT * FROM (` + inOrder + `) AS b`)
}

func refillQuery(d dialect.Dialect) string { return d.SQL(ofKeys) }

// snapshotQuery returns the horizon (all transactions below have ended), the
// ceiling (no transaction from here on has ended), and whether slots have no
// owner. It runs just before the rows are read, so that the rows show at least
// the transactions that it has seen.
func snapshotQuery(d dialect.Dialect) string {
	// A transaction that releases a key may not see rows that are about to be
	// committed, and this read does not see the key released yet. The cursor must
	// pass nothing then.
	snapshot := `CASE WHEN EXISTS (SELECT 1 FROM {blocked_keys}) AND EXISTS (
	                       SELECT 1 FROM pg_locks
	                       WHERE locktype = 'relation' AND relation = '{blocked_keys}'::regclass AND mode = 'RowShareLock'
	                         AND database = (SELECT oid FROM pg_database WHERE datname = current_database()))
	                  THEN 0 ELSE pg_snapshot_xmin(pg_current_snapshot())::text::bigint END,
	             pg_snapshot_xmax(pg_current_snapshot())::text::bigint`
	if d.SQLite() { // one writer at a time: positions appear in their order
		snapshot = `0, 0`
	}
	return d.SQL(`
		SELECT ` + snapshot + `, EXISTS (SELECT 1 FROM {slots} WHERE lease_until IS NULL OR lease_until < {now})`)
}
