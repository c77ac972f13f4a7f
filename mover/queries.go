package mover

import "github.com/watermill-once/once/internal/dialect"

// queries contains the statements for the tables of Watermill's own forwarder, and
// insertDead, which writes to the outbox.
type queries struct {
	position, lock, groups, createGroup string
	waiting, next, advance              string
	exists, left, writers               string
	insertDead                          string
}

// behind is an SQL condition for rows that the consumer group has not acked. The query
// of watermill-sql's subscriber uses an OR instead. With the OR, PostgreSQL cannot
// begin to read the index at the right place.
const behind = `(transaction_id, "offset") > ($1::text::xid8, $2::bigint)`

// readable is the SQL condition with which watermill-sql's subscriber chooses rows: it
// reads a row when no open transaction can add an earlier one. The condition uses the
// snapshot of the query that reads the rows.
const readable = `transaction_id < pg_snapshot_xmin(pg_current_snapshot())`

func newQueries(c Config, d dialect.Dialect) queries {
	position := `SELECT offset_acked, last_processed_transaction_id::text FROM ` + c.OffsetsTable + ` WHERE consumer_group = $1`
	return queries{
		position: position,
		lock:     position + ` FOR UPDATE`,
		groups:   `SELECT consumer_group FROM ` + c.OffsetsTable + ` ORDER BY consumer_group LIMIT 10`,

		// The stock subscriber executes the same statement before it subscribes.
		createGroup: `
			INSERT INTO ` + c.OffsetsTable + ` (consumer_group, offset_acked, last_processed_transaction_id)
			VALUES ($1, 0, '0') ON CONFLICT DO NOTHING`,

		// Without ORDER BY the planner may search from the wrong end of the table.
		waiting: `
			SELECT 1 FROM ` + c.MessagesTable + ` WHERE ` + behind + ` AND ` + readable + `
			ORDER BY transaction_id, "offset" LIMIT 1`,

		// This query reads the first row, whatever its size. The last ORDER BY names the
		// table, because otherwise it would sort by the text of the transaction id.
		next: `
			SELECT "offset", transaction_id::text, uuid, payload, metadata::text
			FROM (SELECT *, SUM(size) OVER (ORDER BY transaction_id, "offset") - size AS before
			      FROM (SELECT "offset", transaction_id, uuid, payload, metadata,
			                   COALESCE(octet_length(payload::text), 0)::bigint AS size
			            FROM ` + c.MessagesTable + ` WHERE ` + behind + ` AND ` + readable + `
			            ORDER BY transaction_id, "offset" LIMIT $3) AS batch) AS sized
			WHERE before < $4 ORDER BY sized.transaction_id, sized."offset"`,

		advance: `
			UPDATE ` + c.OffsetsTable + ` SET last_processed_transaction_id = $1::text::xid8, offset_acked = $2
			WHERE consumer_group = $3`,

		exists: `SELECT to_regclass($1::text) IS NOT NULL`,

		left: `SELECT COUNT(*) FROM ` + c.MessagesTable + ` WHERE ` + behind,

		// A transaction that has inserted rows holds this lock until its rows are
		// visible.
		writers: `
			SELECT COUNT(DISTINCT virtualtransaction) FROM pg_locks
			WHERE locktype = 'relation' AND mode = 'RowExclusiveLock' AND granted
			  AND relation = $1::text::regclass
			  AND database = (SELECT oid FROM pg_database WHERE datname = current_database())`,

		insertDead: d.SQL(`
			INSERT INTO {outbox_dead} (position, message_id, topic, payload, metadata, created_at, attempts,
			                           last_error, reason, unknown)
			VALUES ($1, $2, $3, $4, $5, {now}, 0, $6, $7, $8)`),
	}
}
