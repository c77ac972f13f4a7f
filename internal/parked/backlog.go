package parked

import (
	"context"
	"database/sql"
	"fmt"
	"time"
)

// Backlog is what waits in the table.
type Backlog struct {
	Waiting int64         // rows, counted up to 100,000
	Lag     time.Duration // since when the one waits that is due the longest; 0 if none is due

	// Held is rows that wait behind the head of their ordering key, BlockedKeys
	// heads that are in quarantine; both counted up to 100,000.
	Held, BlockedKeys int64
}

// Backlog looks at all rows that are not final, of every consumer.
func (s *Store) Backlog(ctx context.Context) (b Backlog, err error) {
	var lag int64
	err = s.dialect.Read(ctx, s.db, func(tx *sql.Tx) error {
		return tx.QueryRowContext(ctx, s.sql.backlog).Scan(&b.Waiting, &lag, &b.Held, &b.BlockedKeys)
	})
	if err != nil {
		return Backlog{}, fmt.Errorf("look at parked messages: %w", err)
	}
	b.Lag = time.Duration(lag) * time.Millisecond
	return b, nil
}
