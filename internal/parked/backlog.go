package parked

import (
	"context"
	"database/sql"
	"fmt"
	"time"
)

// Backlog counts the rows of all consumers that are not final. Each count stops
// at 100,000.
type Backlog struct {
	Waiting int64         // waiting rows, claimed ones included
	Lag     time.Duration // how long the row with the earliest due time has been due; 0 if none is due

	WaitingForKey int64 // rows that wait behind the head of their ordering key
	BlockedKeys   int64 // ordering keys whose head is in quarantine
}

// Backlog counts the rows that are not final, of every consumer.
func (s *Store) Backlog(ctx context.Context) (b Backlog, err error) {
	var lag int64
	err = s.dialect.Read(ctx, s.db, func(tx *sql.Tx) error {
		return tx.QueryRowContext(ctx, s.sql.backlog).Scan(&b.Waiting, &lag, &b.WaitingForKey, &b.BlockedKeys)
	})
	if err != nil {
		return Backlog{}, fmt.Errorf("count parked messages: %w", err)
	}
	b.Lag = time.Duration(lag) * time.Millisecond
	return b, nil
}
