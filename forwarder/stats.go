package forwarder

import (
	"context"
	"database/sql"
	"fmt"
	"time"
)

// Stats is what the tables say about the outbox, whoever forwards it.
type Stats struct {
	// Pending is the number of messages in the outbox.
	Pending int

	// Deferred are those of them that are due later: delayed by their
	// producer, or refused and backing off.
	Deferred int

	// Oldest is the age of the first message that waits for nothing but its
	// turn or its ordering key; 0 if there is none.
	Oldest time.Duration

	// Failing is the number of messages that were put off because the broker
	// refused them or their topic does not answer.
	Failing int

	// FailingFor is the time since the first of them was put off first; 0 if
	// there is none.
	FailingFor time.Duration

	// HeldKeys is the number of ordering keys whose head was not accepted.
	HeldKeys int

	// Dead is the number of dead letters.
	Dead int
}

// Stats reads the tables. It counts rows, which takes time in proportion to
// the backlog.
func (f *Forwarder) Stats(ctx context.Context) (Stats, error) {
	var (
		stats           Stats
		oldest, failing sql.NullInt64
		now             int64
	)
	err := f.store.read(ctx, func(tx *sql.Tx) error {
		return tx.QueryRowContext(ctx, f.store.sql.stats).
			Scan(&stats.Pending, &stats.Deferred, &oldest, &stats.Failing, &failing, &stats.HeldKeys, &stats.Dead, &now)
	})
	if err != nil {
		return Stats{}, fmt.Errorf("forwarder: stats: %w", err)
	}
	if oldest.Valid {
		stats.Oldest = time.Duration(max(0, now-oldest.Int64)) * time.Millisecond
	}
	if failing.Valid {
		stats.FailingFor = time.Duration(max(0, now-failing.Int64)) * time.Millisecond
	}
	return stats, nil
}

// glance is Stats at a bounded cost.
func (s *store) glance(ctx context.Context) (glance, error) {
	var (
		seen                glance
		first, due, failing sql.NullInt64
		now                 int64
	)
	err := s.read(ctx, func(tx *sql.Tx) error {
		return tx.QueryRowContext(ctx, s.sql.glance, countedUpTo).
			Scan(&seen.pending, &first, &due, &failing, &seen.heldKeys, &seen.dead, &now)
	})
	for _, since := range []sql.NullInt64{first, due, failing} {
		if since.Valid {
			seen.lag = max(seen.lag, time.Duration(now-since.Int64)*time.Millisecond)
		}
	}
	return seen, err
}
