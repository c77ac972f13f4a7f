package forwarder

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/watermill-once/once/forwarder/internal/dispatch"
	"github.com/watermill-once/once/internal/dialect"
	"github.com/watermill-once/once/internal/outboxrow"
)

// A sweep finds rows without a due time in the order of their positions, and rows with one when
// they are due. It takes no lock and waits for no transaction. As a single statement it sees one
// snapshot, so a message is never read before an earlier one of its key.
//
// Rows that would fill the batch without being sent are excluded: those in memory, later messages
// of a blocked key, and those that the scheduler cannot take now.
//
// Parameters: $1 lowest position, $2 positions in memory, $3 slots, $4 excluded keys (sweep) or
// wanted keys (refill), $5 limit. For a sweep also $6 limit of due rows, and $7 topics whose rows
// without a key are excluded.
const (
	// PostgreSQL computes (SELECT {clock}) once, but {clock} for each row.
	columnsOfRow = `position, slot, message_id, topic, COALESCE(ordering_key, '') AS ordering_key, payload,
	                CAST(metadata AS text) AS metadata, attempts,
	                CASE WHEN ordering_key IS NOT NULL AND ` + anyBlocked + `
	                     THEN (SELECT h.successors_after FROM {blocked_keys} AS h
	                           WHERE h.ordering_key = o.ordering_key AND h.position = o.position) END AS successors_after,
	                {millis created_at} AS created, (SELECT {clock}) - ` + sendFrom + ` AS waited`

	// sendFrom is the due time, or the time of creation if there is none, or if it is that of the
	// next attempt of a refused message.
	sendFrom = `CASE WHEN due_at IS NOT NULL AND failing_since IS NULL THEN {millis due_at} ELSE {millis created_at} END`

	// Usually no key is blocked: this check saves one of each row.
	anyBlocked = `EXISTS (SELECT 1 FROM {blocked_keys})`

	// mayBeRead is a single CASE without a join. PostgreSQL's planner estimates that it is true for
	// half of the rows, so it scans the index until it has enough. For other conditions it
	// multiplies estimates that are wrong, because the table grows and shrinks between two runs of
	// ANALYZE, and would sort the whole backlog for every batch.
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

// Due rows come first. Otherwise a backlog of large messages could fill every batch.
const sweep = `SELECT * FROM (` + whenDue + `) AS a UNION ALL SELECT * FROM (` + inOrder + `) AS b`

// anyRow is true if a sweep may return rows, in a tenth of the time: planning a sweep takes longer
// than running it. ORDER BY makes PostgreSQL use the indexes even if its estimates are wrong.
const anyRow = `(SELECT 1 FROM {outbox} WHERE position > $1 AND CASE WHEN due_at IS NULL THEN 1 = 1 ELSE 1 = 0 END
                 ORDER BY position LIMIT 1) IS NOT NULL
             OR (SELECT 1 FROM {outbox} WHERE due_at <= {now} ORDER BY due_at LIMIT 1) IS NOT NULL`

const (
	unownedSlots = 1 << iota
	blockedKeys
	serializable
	readOnly
	rowsToRead
)

// stateOfRead returns the values of snapshotQuery as one row before the rows of a sweep, so that a
// read with PostgreSQL needs only one statement.
//
// snapshotQuery runs before the sweep gets its snapshot, and checks whether a transaction that
// releases keys is running. stateOfRead has the snapshot of the sweep, and cannot. Instead its
// horizon is 0 while any key is blocked, and the next read must use a transaction.
//
// In the columns of a message, position is the horizon, metadata the pauses, successors_after the
// last position, created the ceiling, and waited the flags.
var stateOfRead = stateWith(`0`)

// stateAlone is stateOfRead without a sweep, with the flag rowsToRead if a sweep may return rows.
var stateAlone = stateWith(fmt.Sprintf(`CASE WHEN `+anyRow+` THEN %d ELSE 0 END`, rowsToRead))

// stateWith sets the flags unownedSlots, blockedKeys, serializable and readOnly, and flag, an SQL
// expression or 0.
func stateWith(flag string) string {
	return fmt.Sprintf(`
	SELECT CASE WHEN `+anyBlocked+` THEN 0 ELSE pg_snapshot_xmin(pg_current_snapshot())::text::bigint END AS position,
	       0::smallint AS slot, '' AS message_id, '' AS topic, '' AS ordering_key, ''::bytea AS payload, `+pausesOfPostgres+` AS metadata,
	       0 AS attempts, `+lastPosition+` AS successors_after,
	       pg_snapshot_xmax(pg_current_snapshot())::text::bigint AS created,
	       CASE WHEN `+anyUnowned+` THEN %d ELSE 0 END + CASE WHEN `+anyBlocked+` THEN %d ELSE 0 END +
	       CASE WHEN current_setting('transaction_isolation') = 'serializable' THEN %d ELSE 0 END +
	       CASE WHEN `+readOnlyServer+` THEN %d ELSE 0 END + %s AS waited, 0 AS due`,
		unownedSlots, blockedKeys, serializable, readOnly, flag)
}

// readOnlyServer is true for a replica, and for a server that its operators have made read-only, as
// target_session_attrs defines it. Rows from there could be sent, but not deleted.
const readOnlyServer = `(pg_is_in_recovery() OR current_setting('default_transaction_read_only') = 'on')`

// lastPosition is NULL if the sequence is new, or if the user may not read it.
const lastPosition = `CASE WHEN has_sequence_privilege('{outbox_position}', 'SELECT')
	                    THEN pg_sequence_last_value('{outbox_position}'::regclass) END`

const anyUnowned = `EXISTS (SELECT 1 FROM {slots} WHERE lease_until IS NULL OR lease_until < {now})`

// snapshotQuery returns a query for the values of an outboxState:
//
//   - the horizon: all transactions with a lower id have ended,
//   - the ceiling: no transaction with this id or a higher one has ended,
//   - whether any slots have no owner, and whether any keys are blocked,
//   - the pauses and, if anything is paused, the highest position,
//   - the last position of the sequence,
//   - whether the server is read-only.
//
// It runs just before the rows are read, so the read sees each transaction that has ended according
// to it.
func snapshotQuery(d dialect.Dialect) string {
	// A transaction that releases a key may not see rows that are committed at the same time, while
	// this read does not see the release yet. Nobody would read these rows if the cursor passed
	// them, so the horizon is 0 while such a transaction runs.
	snapshot, last, unwritable := `CASE WHEN EXISTS (SELECT 1 FROM {blocked_keys}) AND EXISTS (
	                       SELECT 1 FROM pg_locks
	                       WHERE locktype = 'relation' AND relation = '{blocked_keys}'::regclass AND mode = 'RowShareLock'
	                         AND database = (SELECT oid FROM pg_database WHERE datname = current_database()))
	                  THEN 0 ELSE pg_snapshot_xmin(pg_current_snapshot())::text::bigint END,
	             pg_snapshot_xmax(pg_current_snapshot())::text::bigint`, lastPosition, readOnlyServer
	if d.SQLite() { // SQLite has one writer at a time, so rows become visible in the order of positions
		snapshot, last, unwritable = `0, 0`, `NULL`, `0`
	}
	return d.SQL(`
		SELECT ` + snapshot + `, ` + anyUnowned + `, ` + anyBlocked + `, ` + listPauses(d) + `,
		       CASE WHEN EXISTS (SELECT 1 FROM {pauses}) THEN ` + highestPosition + ` ELSE 0 END, ` + last + `, ` + unwritable)
}

const highestPosition = `COALESCE((SELECT MAX(position) FROM {outbox}), 0)`

// snapshotOfLookahead also returns the highest position, and stops PostgreSQL from compiling the
// later queries of the transaction.
func snapshotOfLookahead(d dialect.Dialect) string {
	return d.SQL(`SELECT horizon, ceiling, unowned, blocked, pauses, ` + highestPosition + `, last, unwritable
		FROM (` + snapshotQuery(d) + `) AS s (horizon, ceiling, unowned, blocked, pauses, highest, last, unwritable)
		WHERE set_config('jit', 'off', true) = 'off'`)
}

// Each sweep also returns the pauses, so that no separate query is needed. If they differ from
// those that it has used, the scheduler ignores its rows, and the next sweep uses the new pauses.
// While something is paused, reads cost more: a sweep runs in a transaction, and checks the topic
// and the tenant of each row.

// listPauses is a JSON list of the pauses, or an empty string.
func listPauses(d dialect.Dialect) string {
	if d.SQLite() {
		return `COALESCE((SELECT CASE WHEN COUNT(*) > 0 THEN json_group_array(json_array(kind, name)) END
		                  FROM (SELECT kind, name FROM {pauses} ORDER BY kind, name) AS p), '')`
	}
	return pausesOfPostgres
}

const pausesOfPostgres = `COALESCE((SELECT CAST(json_agg(json_build_array(kind, name) ORDER BY kind, name) AS text) FROM {pauses}), '')`

func decodePauses(text string) (p dispatch.Pauses, err error) {
	if text == "" {
		return p, nil
	}
	var list [][2]string
	if err := json.Unmarshal([]byte(text), &list); err != nil {
		return p, fmt.Errorf("forwarder: pauses: %w", err)
	}
	for _, pause := range list {
		if pause[0] == outboxrow.PausedTopic {
			p.Topics = append(p.Topics, pause[1])
		} else {
			p.Tenants = append(p.Tenants, pause[1])
		}
	}
	return p, nil
}

// leaveOutPaused changes a sweep or a refill so that it leaves out paused rows without a key, and
// with a due time. Other paused rows are returned without contents, marked by -1 attempts, because
// the scheduler must know which keys they block. topics and tenants are SQL parameters.
func leaveOutPaused(d dialect.Dialect, query, topics, tenants string) string {
	paused := outboxrow.Paused(d, `{list `+topics+` text}`, `{list `+tenants+` text}`)
	return strings.NewReplacer(
		`ordering_key, payload,`, `ordering_key, CASE WHEN `+paused+` THEN '' ELSE payload END AS payload,`,
		`CAST(metadata AS text) AS metadata, attempts,`, `CASE WHEN `+paused+` THEN '{}' ELSE CAST(metadata AS text) END AS metadata,
		 CASE WHEN `+paused+` THEN -1 ELSE attempts END AS attempts,`,
		`CASE WHEN due_at IS NULL THEN`, `CASE WHEN ordering_key IS NULL AND `+paused+` THEN 1 = 0 WHEN due_at IS NULL THEN`,
		`due_at <= {now} AND`, `due_at <= {now} AND NOT `+paused+` AND`,
	).Replace(query)
}
