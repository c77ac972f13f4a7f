package dedup

import (
	"context"
	"database/sql"
	"time"
)

// SweepQuery is how a batch of the inbox is removed.
func SweepQuery(i *Inbox) string { return i.sql.sweepInbox }

// DigestsQuery is how several messages are compared.
func DigestsQuery(i *Inbox) string { return i.sql.digests }

// SweepDay sweeps the day that begins then, whether it is there or not.
func SweepDay(ctx context.Context, i *Inbox, begin time.Time) error {
	_, _, err := i.sweepDay(ctx, i.day(&calendar{schema: "public"}, begin))
	return err
}

// DropDay drops it as if it had been seen empty.
func DropDay(ctx context.Context, i *Inbox, begin time.Time) error {
	days := []day{i.day(&calendar{schema: "public"}, begin)}
	return i.onDays(ctx, func(tx *sql.Tx) (int, error) { return i.drop(ctx, tx, days) }, dropped)
}

// MakeDay makes it.
func MakeDay(ctx context.Context, i *Inbox, begin time.Time) error {
	d := i.day(&calendar{schema: "public"}, begin)
	return i.onDays(ctx, func(tx *sql.Tx) (int, error) { return 1, i.make(ctx, tx, d) }, created)
}
