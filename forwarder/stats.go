package forwarder

import (
	"context"
	"database/sql"
	"fmt"
	"time"

	"github.com/watermill-once/once/internal/dialect"
	"github.com/watermill-once/once/internal/outboxrow"
)

// Stats describes the whole outbox, not only the slots of this instance.
type Stats struct {
	// Pending is the number of messages in the outbox.
	Pending int

	// Deferred is the number of messages that are due later: their producer delayed them,
	// or they were refused and wait for the next attempt.
	Deferred int

	// Oldest is the age of the oldest message without a due time, or 0 if there is no such
	// message.
	Oldest time.Duration

	// Failing is the number of messages that wait because the broker refused them, or
	// because their topic does not confirm.
	Failing int

	// FailingFor is the longest time for which a message that Failing counts has been
	// failing. It is 0 if Failing is 0.
	FailingFor time.Duration

	// BlockedKeys is the number of ordering keys that are blocked, because the broker
	// did not accept their first message.
	BlockedKeys int

	// Dead is the number of dead letters.
	Dead int

	// Pauses is the number of paused topics and tenants, see pending.Messages.Pause. The
	// other numbers include the paused messages.
	Pauses int
}

// Stats reads the tables and returns the numbers. It counts rows, so its cost grows
// with the backlog.
func (f *Forwarder) Stats(ctx context.Context) (Stats, error) {
	var (
		stats           Stats
		oldest, failing sql.NullInt64
		now             int64
	)
	err := f.store.read(ctx, func(tx *sql.Tx) error {
		return tx.QueryRowContext(ctx, f.store.sql.stats).
			Scan(&stats.Pending, &stats.Deferred, &oldest, &stats.Failing, &failing, &stats.BlockedKeys, &stats.Dead, &stats.Pauses, &now)
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

// boundedStats returns the numbers for the metrics. Unlike those of Stats, its counts
// stop at countedUpTo, so its cost is limited.
func (s *store) boundedStats(ctx context.Context) (boundedStats, error) {
	var (
		seen                boundedStats
		first, due, failing sql.NullInt64
		now                 int64
	)
	err := s.read(ctx, func(tx *sql.Tx) error {
		return tx.QueryRowContext(ctx, s.sql.boundedStats, countedUpTo).
			Scan(&seen.pending, &first, &due, &failing, &seen.blockedKeys, &seen.dead, &seen.pauses, &now)
	})
	for _, since := range []sql.NullInt64{first, due, failing} {
		if since.Valid {
			seen.lag = max(seen.lag, time.Duration(now-since.Int64)*time.Millisecond)
		}
	}
	return seen, err
}

func statsQuery(d dialect.Dialect) string {
	return d.SQL(`
			SELECT (SELECT COUNT(*) FROM {outbox}),
			       (SELECT COUNT(*) FROM {outbox} WHERE due_at > {now}),
			       (SELECT {millis created_at} FROM {outbox} WHERE due_at IS NULL ORDER BY position LIMIT 1),
			       (SELECT COUNT(*) FROM {outbox} WHERE failing_since IS NOT NULL),
			       (SELECT {millis failing_since} FROM {outbox} WHERE failing_since IS NOT NULL ORDER BY failing_since LIMIT 1),
			       (SELECT COUNT(*) FROM {blocked_keys}),
			       (SELECT COUNT(*) FROM {outbox_dead}),
			       (SELECT COUNT(*) FROM {pauses}),
			       {clock}`)
}

// boundedStatsQuery returns a query that is cheap enough to run often. Its counts stop
// at $1. It uses an index to find the first message that waits, is due or has failed.
func boundedStatsQuery(d dialect.Dialect) string {
	return d.SQL(`
			SELECT (SELECT COUNT(*) FROM (SELECT 1 AS one FROM {outbox} LIMIT $1) AS p),
			       ` + outboxrow.WaitingSince + `,
			       (SELECT COUNT(*) FROM (SELECT 1 AS one FROM {blocked_keys} LIMIT $1) AS h),
			       (SELECT COUNT(*) FROM (SELECT 1 AS one FROM {outbox_dead} LIMIT $1) AS d),
			       (SELECT COUNT(*) FROM {pauses}),
			       {clock}`)
}
