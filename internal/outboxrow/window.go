package outboxrow

import (
	"context"
	"database/sql"

	"github.com/watermill-once/once/internal/dialect"
)

// WindowRows is the number of rows of the outbox that one query of a search examines. A
// search for a message id must examine rows, because the outbox has no index on message
// ids: an index would slow down the business transactions.
const WindowRows = 20_000

// Window examines the next WindowRows rows above the position in the parameter after.
// It returns the position of the last of these rows. If there are fewer rows, it
// returns 0.
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
