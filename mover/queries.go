package mover

import "github.com/watermill-once/once/internal/dialect"

// queries are the statements on the stock tables, and one on ours.
type queries struct {
	position, lock, groups, begin string
	waiting, next, advance        string
	exists, left, writers         string
	bury                          string
}

// behind is true of rows that the consumer group has not acked. Stock writes
// it with an OR, which PostgreSQL cannot use to enter the index at the place.
const behind = `(transaction_id, "offset") > ($1::text::xid8, $2::bigint)`

// readable is the stock rule: no transaction that is still open can add a row
// before one of these. It is evaluated with the snapshot that sees the rows.
const readable = `transaction_id < pg_snapshot_xmin(pg_current_snapshot())`

func newQueries(c Config, d dialect.Dialect) queries {
	position := `SELECT offset_acked, last_processed_transaction_id::text FROM ` + c.OffsetsTable + ` WHERE consumer_group = $1`
	return queries{
		position: position,
		lock:     position + ` FOR UPDATE`,
		groups:   `SELECT consumer_group FROM ` + c.OffsetsTable + ` ORDER BY consumer_group LIMIT 10`,

		// As the stock subscriber does before it subscribes.
		begin: `
			INSERT INTO ` + c.OffsetsTable + ` (consumer_group, offset_acked, last_processed_transaction_id)
			VALUES ($1, 0, '0') ON CONFLICT DO NOTHING`,

		// Ordered, or the planner may look for any one row from the wrong end.
		waiting: `
			SELECT 1 FROM ` + c.MessagesTable + ` WHERE ` + behind + ` AND ` + readable + `
			ORDER BY transaction_id, "offset" LIMIT 1`,

		// The first row is taken whatever its size. The last ORDER BY names the
		// table, or it would sort by the text.
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

		// Who has inserted keeps this lock until the end of the transaction,
		// and lets go of it when the rows can be seen.
		writers: `
			SELECT COUNT(DISTINCT virtualtransaction) FROM pg_locks
			WHERE locktype = 'relation' AND mode = 'RowExclusiveLock' AND granted
			  AND relation = $1::text::regclass
			  AND database = (SELECT oid FROM pg_database WHERE datname = current_database())`,

		bury: d.SQL(`
			INSERT INTO {outbox_dead} (position, message_id, topic, payload, metadata, created_at, attempts,
			                           last_error, reason, unknown)
			VALUES ($1, $2, $3, $4, $5, {now}, 0, $6, $7, $8)`),
	}
}
