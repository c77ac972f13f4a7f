package dedup

import (
	"context"
	"database/sql"
	"time"
)

// SweepQuery returns the statement that removes a batch of rows from the inbox.
func SweepQuery(i *Inbox) string { return i.sql.sweepInbox }

// UnknownKeysQuery returns the statement that finds parked messages whose keys are unknown.
func UnknownKeysQuery(i *Inbox) string { return i.sql.keys.page }

// SweepInTwoSteps sweeps the inbox, and calls the function between when the keys of
// parked messages are recorded and nothing is removed yet.
func SweepInTwoSteps(ctx context.Context, i *Inbox, between func()) error {
	expired, err := i.recordParkedKeys(ctx)
	if err != nil {
		return err
	}
	between()
	_, err = i.removeExpired(ctx, expired)
	return err
}

// DigestsQuery returns the statement that reads the digests of several messages.
func DigestsQuery(i *Inbox) string { return i.claims.In(nil).digests }

// SweepDay sweeps the day that begins at the given time, even if its partition does not
// exist.
func SweepDay(ctx context.Context, i *Inbox, begin time.Time) error {
	_, _, err := i.sweepDay(ctx, i.day(&calendar{schema: "public"}, begin))
	return err
}

// DropDay drops the day as if the sweep had found it empty.
func DropDay(ctx context.Context, i *Inbox, begin time.Time) error {
	days := []day{i.day(&calendar{schema: "public"}, begin)}
	return i.inDayTx(ctx, func(tx *sql.Tx) (int, error) { return i.dropDays(ctx, tx, days) }, dropped)
}

// CreateDay creates the partition of the day.
func CreateDay(ctx context.Context, i *Inbox, begin time.Time) error {
	d := i.day(&calendar{schema: "public"}, begin)
	return i.inDayTx(ctx, func(tx *sql.Tx) (int, error) { return 1, i.createDay(ctx, tx, d) }, created)
}

// These errors are not exported, because they occur only if the setup is wrong.
var (
	ErrNoConsumer = errNoConsumer
	ErrNoOutbox   = errNoOutbox
	ErrNoTopic    = errNoTopic
)

// Size returns the rows and the bytes that the metrics report.
func (i *Inbox) Size(ctx context.Context) (live, dead, bytes int64, err error) {
	s, err := i.size(ctx)
	return s.live, s.dead, s.bytes, err
}
