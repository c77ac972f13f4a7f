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
// A forwarder may have read the outbox beyond the waiting messages of a key already. It
// would then find these messages only when it reads the outbox from the start again.
// Therefore Unblock makes the first waiting message the head of its key, and due
// immediately. Forwarders find heads by their due time, and read the other messages of
// the key after the head.
func Unblock(ctx context.Context, tx *sql.Tx, d dialect.Dialect, positions []int64, keys []string) error {
	if len(keys) == 0 {
		return nil
	}
	blocked := `(b.position, b.ordering_key) IN (SELECT c.position, c.ordering_key FROM ` +
		d.Columns("position bigint", "ordering_key text") + `) AND b.reason = '` + outboxrow.BlockedDead + `'`
	if !d.SQLite() {
		// Lock the rows in one order, so that two calls cannot wait for each other. The
		// statement also locks the table, even if no row matches. A forwarder that reads the
		// outbox at this time sees the lock, and knows that the blocked keys may change, see
		// snapshotQuery of package forwarder.
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
		// The value of successors_after never rises. A transaction that commits now may insert
		// a message of the key at a lower position than the first message that this statement
		// finds.
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
