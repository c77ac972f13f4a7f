package dedup

import (
	"context"
	"database/sql"
	"time"
)

// SweepQuery returns the statement that removes a batch of the inbox.
func SweepQuery(i *Inbox) string { return i.sql.sweepInbox }

// DigestsQuery returns the statement that reads the digests of several messages.
func DigestsQuery(i *Inbox) string { return i.sql.digests }

// SweepDay sweeps the day that begins at begin, whether it exists or not.
func SweepDay(ctx context.Context, i *Inbox, begin time.Time) error {
	_, _, err := i.sweepDay(ctx, i.day(&calendar{schema: "public"}, begin))
	return err
}

// DropDay drops the day as if it had been seen empty.
func DropDay(ctx context.Context, i *Inbox, begin time.Time) error {
	days := []day{i.day(&calendar{schema: "public"}, begin)}
	return i.inDayTx(ctx, func(tx *sql.Tx) (int, error) { return i.dropDays(ctx, tx, days) }, dropped)
}

// CreateDay creates the partition of the day.
func CreateDay(ctx context.Context, i *Inbox, begin time.Time) error {
	d := i.day(&calendar{schema: "public"}, begin)
	return i.inDayTx(ctx, func(tx *sql.Tx) (int, error) { return 1, i.createDay(ctx, tx, d) }, created)
}

// Errors that are not exported, because only a mistake in the setup causes
// them.
var (
	ErrNoConsumer = errNoConsumer
	ErrNoOutbox   = errNoOutbox
	ErrNoTopic    = errNoTopic
)
