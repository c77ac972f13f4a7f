package parked

import (
	"context"
	"database/sql"
	"fmt"
	"time"
)

// Backlog contains the numbers of waiting and held rows, and of blocked ordering keys,
// for all consumers together. No count goes above 100,000.
type Backlog struct {
	Waiting int64         // waiting rows, including claimed rows
	Lag     time.Duration // time since the earliest due time of a waiting row; 0 if no row is due

	WaitingForKey int64 // rows that wait behind the head of their ordering key
	BlockedKeys   int64 // ordering keys whose head is in quarantine
}

// Backlog counts the waiting and the held rows, and the blocked ordering keys, for all
// consumers together.
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
