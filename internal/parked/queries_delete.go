package parked

import "github.com/watermill-once/once/internal/dialect"

// deleteQueries are the statements of this package that delete rows. Package dedup uses
// [DeleteRows] as well, to delete final rows when its retention is over.
type deleteQueries struct {
	remove      string
	forget      string
	removeQueue string
}

func newDeleteQueries(d dialect.Dialect) deleteQueries {
	return deleteQueries{
		remove: d.SQL(`DELETE FROM {parked} WHERE ` + claimed + ` RETURNING id`),

		// Replayed rows stay until dedup deletes them after its retention.
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

// DeleteRows returns a statement that deletes the rows whose ids the given query
// returns. The statement skips locked rows. The parameter returning is the RETURNING
// clause of the statement, or "".
func DeleteRows(d dialect.Dialect, query, returning string) string {
	among, end := chosen(d)
	return d.SQL(`
			DELETE FROM {parked} WHERE id ` + among + query + `
				{skip_locked}` + end + ` ` + returning)
}
