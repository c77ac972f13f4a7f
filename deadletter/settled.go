package deadletter

import (
	"context"
	"database/sql"
	"fmt"
	"time"

	"github.com/watermill-once/once/internal/dialect"
)

// settlePoll is the pause between two queries for transactions that write to the log.
const settlePoll = 100 * time.Millisecond

// SettledID returns an ID of the sent log. No further rows will appear with this ID or
// a lower one. If the log is empty, it returns 0. Several forwarders write to the log
// at the same time, so a row may be committed after a row with a higher ID. SettledID
// therefore waits until all transactions have ended that were writing to the log when
// it was called. An archive that exports the rows from its last ID to SettledID misses
// no row, see Filter.AfterID and Filter.UntilID.
func (s *SentLog) SettledID(ctx context.Context) (int64, error) {
	id, err := s.settledID(ctx)
	if err != nil {
		return 0, fmt.Errorf("deadletter: sent log: settled ID: %w", err)
	}
	return id, nil
}

// writers is a query for the transactions that hold the lock for writing rows. A
// transaction takes this lock before it gets the ID of a row.
const writers = `SELECT virtualtransaction FROM pg_locks
	WHERE locktype = 'relation' AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
	  AND relation = $1::text::regclass AND mode = 'RowExclusiveLock' AND granted`

func (s *SentLog) settledID(ctx context.Context) (id int64, err error) {
	t := s.table
	name := t.dialect.SQL(t.name)
	var writing []string
	err = t.read(ctx, func(tx *sql.Tx) error {
		writing = nil
		err := tx.QueryRowContext(ctx, `SELECT COALESCE(MAX(id), 0) FROM `+name).Scan(&id)
		if err != nil || t.dialect.SQLite() { // SQLite has one writer: its rows are committed in order
			return err
		}
		return dialect.EachRow(ctx, tx, func(scan func(dest ...any) error) error {
			var transaction string
			err := scan(&transaction)
			writing = append(writing, transaction)
			return err
		}, writers, name)
	})
	if err != nil || len(writing) == 0 {
		return id, err
	}
	tick := time.NewTicker(settlePoll)
	defer tick.Stop()
	for {
		var left bool
		err := t.read(ctx, func(tx *sql.Tx) error {
			return tx.QueryRowContext(ctx, `SELECT EXISTS (`+writers+` AND virtualtransaction = ANY ($2::text::text[]))`,
				name, t.dialect.Strings(writing)).Scan(&left)
		})
		switch {
		case ctx.Err() != nil:
		case err != nil, !left:
			return id, err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
		}
		if ctx.Err() != nil {
			return 0, fmt.Errorf("a transaction that writes to the sent log has not ended: %w", ctx.Err())
		}
	}
}
