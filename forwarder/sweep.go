package forwarder

import "github.com/watermill-once/once/internal/dialect"

// A row without a due time is found by its position, one with a due time when
// it is due: each row by exactly one of two sweeps. Neither takes a lock or
// waits for anybody, and one statement sees one snapshot, so that a message is
// never read before an earlier one of its key.
//
// What must not fill the batch is left out here: rows that are in memory, keys
// that are held by another row, and whatever the loop cannot take now.
//
// Parameters: $1 from position, $2 positions in memory, $3 slots, $4 keys that
// are left out (read) or meant (refill), $5 limit; read has $6 limit of due
// rows, $7 topics that are left out where no key is involved.
const (
	columnsOfRow = `position, slot, message_id, topic, COALESCE(ordering_key, '') AS ordering_key, payload,
	                CAST(metadata AS text) AS metadata, attempts,
	                CASE WHEN ordering_key IS NOT NULL AND ` + anyHolds + `
	                     THEN (SELECT h.successors_after FROM {blocked_keys} AS h
	                           WHERE h.ordering_key = o.ordering_key AND h.position = o.position) END AS successors_after`

	// Mostly there are none, and one look saves one for each row.
	anyHolds = `EXISTS (SELECT 1 FROM {blocked_keys})`

	// As one CASE and without a join, PostgreSQL's planner reckons with half of
	// the rows and walks along the index until there are enough. Left to
	// itself it multiplies guesses about a table that grows and shrinks
	// between two looks at it, and sorts the whole backlog for every batch.
	mayBeRead = `CASE WHEN position IN {list $2 bigint} OR slot NOT IN {list $3 smallint} THEN 1 = 0
	                  WHEN ordering_key IS NULL THEN topic NOT IN {list $7 text}
	                  WHEN ordering_key IN {list $4 text} THEN 1 = 0
	                  ELSE ` + notHeld + ` END`

	mayBeRefilled = `CASE WHEN position IN {list $2 bigint} OR slot NOT IN {list $3 smallint} OR ordering_key IS NULL THEN 1 = 0
	                      WHEN ordering_key NOT IN {list $4 text} THEN 1 = 0
	                      ELSE ` + notHeld + ` END`

	notHeld = `CASE WHEN ` + anyHolds + `
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

// Due rows come first, or a backlog of large messages could keep them out of
// every batch.
func readQuery(d dialect.Dialect) string {
	return d.SQL(`SELECT * FROM (` + whenDue + `) AS a UNION ALL SELECT * FROM (` + inOrder + `) AS b`)
}

func refillQuery(d dialect.Dialect) string { return d.SQL(ofKeys) }

// snapshotQuery says how far other transactions are, horizon: all below have
// ended, ceiling: none from here on has, and whether slots have no owner.
// It is asked just before the rows are read, so that these show at least what
// it has seen.
func snapshotQuery(d dialect.Dialect) string {
	// Who lets a key go may not see what somebody else is about to commit, and
	// this read does not see the key gone: nothing may be passed then.
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
