package outboxrow

import (
	"context"
	"database/sql"

	"github.com/watermill-once/once/internal/dialect"
)

// WindowRows is how many rows of the outbox one query looks at. No index finds a row
// by its message, because every index on the outbox slows down the business
// transactions.
const WindowRows = 20_000

// Window returns the last position of the WindowRows rows behind after, or 0 if the
// outbox ends before.
func Window(ctx context.Context, tx *sql.Tx, d dialect.Dialect, after int64) (last int64, err error) {
	n := 0
	err = tx.QueryRowContext(ctx, d.SQL(`SELECT COUNT(*), COALESCE(MAX(w.position), 0) FROM (
		SELECT position FROM {outbox} WHERE position > $1 ORDER BY position LIMIT $2) AS w`), after, WindowRows).Scan(&n, &last)
	if n < WindowRows {
		last = 0
	}
	return last, err
}

// State is an SQL expression for the state of row o of the outbox.
const State = `CASE WHEN o.ordering_key IS NOT NULL AND EXISTS (SELECT 1 FROM {blocked_keys})
	      AND EXISTS (SELECT 1 FROM {blocked_keys} AS h WHERE h.ordering_key = o.ordering_key AND h.position <> o.position) THEN 'blocked'
	 WHEN o.due_at > {now} AND o.failing_since IS NOT NULL THEN 'backing_off'
	 WHEN o.due_at > {now} THEN 'delayed'
	 ELSE 'due' END`
