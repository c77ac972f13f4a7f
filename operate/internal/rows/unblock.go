package rows

import (
	"context"
	"database/sql"

	"github.com/watermill-once/once/internal/dialect"
	"github.com/watermill-once/once/internal/failpoint"
	"github.com/watermill-once/once/internal/outboxrow"
)

// Unblock unblocks the keys that are blocked by the dead letters at these positions.
//
// A forwarder may have read beyond the waiting messages of a key, and would find them only when it
// reads from the start again. Therefore the first one becomes the head of its key, due immediately:
// forwarders find heads by their due time, and then the messages behind.
func Unblock(ctx context.Context, tx *sql.Tx, d dialect.Dialect, positions []int64, keys []string) error {
	if len(keys) == 0 {
		return nil
	}
	blocked := `(b.position, b.ordering_key) IN (SELECT c.position, c.ordering_key FROM ` +
		d.Columns("position bigint", "ordering_key text") + `) AND b.reason = '` + outboxrow.BlockedDead + `'`
	if !d.SQLite() {
		// In one order, so that two calls cannot wait for each other. The statement also locks the
		// table, even without a row: a forwarder that reads at this time sees that blocked keys may
		// change, see snapshotQuery of package forwarder.
		if _, err := tx.ExecContext(ctx, d.SQL(`SELECT FROM {blocked_keys} AS b WHERE `+blocked+` ORDER BY b.ordering_key FOR UPDATE`),
			d.List(positions), d.Strings(keys)); err != nil {
			return err
		}
	}
	for _, query := range []string{
		`UPDATE {outbox} SET due_at = COALESCE(due_at, {now})
		 WHERE position IN (SELECT MIN(o.position) FROM {outbox} AS o
		                    WHERE o.ordering_key IN (SELECT b.ordering_key FROM {blocked_keys} AS b WHERE ` + blocked + `)
		                    GROUP BY o.ordering_key)`,
		// successors_after never rises: a transaction that commits now may insert a message of the
		// key below the first one that this statement finds.
		`UPDATE {blocked_keys} AS b SET position = f.position, reason = '` + outboxrow.BlockedReleased + `',
		        successors_after = CASE WHEN f.position < b.successors_after THEN f.position ELSE b.successors_after END
		 FROM (SELECT o.ordering_key, MIN(o.position) AS position FROM {outbox} AS o
		       WHERE o.ordering_key IN {list $2 text} GROUP BY o.ordering_key) AS f
		 WHERE f.ordering_key = b.ordering_key AND ` + blocked,
		`DELETE FROM {blocked_keys} AS b WHERE ` + blocked, // keys without a waiting message
	} {
		if _, err := tx.ExecContext(ctx, d.SQL(query), d.List(positions), d.Strings(keys)); err != nil {
			return err
		}
		failpoint.Hit("operate/unblocking")
	}
	return nil
}
