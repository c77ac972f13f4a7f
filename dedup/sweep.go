package dedup

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/watermill-once/once/internal/failpoint"
	"github.com/watermill-once/once/schema"
)

// sweepBatch bounds what one transaction removes.
const sweepBatch = 2000

// Run calls [Inbox.Sweep] every Config.SweepInterval until ctx ends, and
// returns nil then. Any number of processes may run it: they do not wait for
// each other. An error of the database is logged, and the next sweep tries on.
// After the first sweep that succeeds it logs what [schema.Durability] says.
func (i *Inbox) Run(ctx context.Context) error {
	tick := time.NewTicker(i.config.SweepInterval)
	defer tick.Stop()
	failing, looked := false, false
	for {
		_, err := i.Sweep(ctx)
		if err == nil && !looked {
			i.dialect.LogDurability(ctx, i.db, i.config.Logger)
			looked = true
		}
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil && !failing:
			i.config.Logger.Error("What is too old cannot be removed, trying on", err, nil)
		case err == nil && failing:
			i.config.Logger.Info("What is too old is removed again", nil)
		}
		failing = err != nil
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
	}
}

// Sweep removes what is older than Config.Retention by the database's clock,
// in short transactions, and says how many rows that were: messages that are
// remembered, but for those that wait or are in quarantine and so may run
// again, and parked messages that were resolved or discarded, but for those of a
// replay that has not finished.
//
// Of an inbox with the layout schema.ByDay it also makes the partitions of the
// days that come, and removes days that are too old, whose rows it does not
// count: for that it must be called as the owner of the tables. A day that is
// in use is left to the next call.
func (i *Inbox) Sweep(ctx context.Context) (removed int64, err error) {
	if i.config.Schema.Inbox == schema.ByDay {
		removed, err = i.sweepDays(ctx)
	}
	n, failed := i.sweepAll(ctx, i.sql.sweepInbox)
	removed, err = removed+n, errors.Join(err, failed)
	n, failed = i.sweepParked(ctx)
	removed, err = removed+n, errors.Join(err, failed)
	if err != nil {
		err = fmt.Errorf("dedup: sweep: %w", err)
	}
	return removed, err
}

// sweepAll removes batches until there is nothing left to remove.
func (i *Inbox) sweepAll(ctx context.Context, query string) (removed int64, err error) {
	for {
		n, err := i.sweep(ctx, query)
		removed += n
		if err != nil || n < sweepBatch {
			return removed, err
		}
	}
}

func (i *Inbox) sweep(ctx context.Context, query string) (removed int64, err error) {
	return i.inBatch(ctx, func(tx *sql.Tx) (int64, error) {
		result, err := tx.ExecContext(ctx, query, -i.config.Retention.Milliseconds(), sweepBatch)
		if err != nil {
			return 0, err
		}
		return result.RowsAffected()
	})
}

// sweepParked removes batches of parked messages, each from where the one before
// it has come to: what must stay, of a replay that was never resumed, is passed
// over once.
func (i *Inbox) sweepParked(ctx context.Context) (removed int64, err error) {
	statement, args := i.sql.sweepParked, []any{-i.config.Retention.Milliseconds(), sweepBatch}
	for {
		last := int64(math.MinInt64)
		n, err := i.inBatch(ctx, func(tx *sql.Tx) (n int64, err error) {
			err = query(ctx, tx, func(scan func(...any) error) error {
				var at int64
				err := scan(&at)
				n, last = n+1, max(last, at)
				return err
			}, statement, args...)
			return n, err
		})
		removed += n
		if err != nil || n < sweepBatch {
			return removed, err
		}
		statement, args = i.sql.sweepParkedFrom, append(args[:2:2], last-1) // which may have been rounded up
	}
}

// inBatch is the transaction of a batch.
func (i *Inbox) inBatch(ctx context.Context, remove func(tx *sql.Tx) (int64, error)) (removed int64, err error) {
	err = i.dialect.Write(ctx, i.db, func(tx *sql.Tx) error {
		removed, err = remove(tx)
		failpoint.Hit("dedup/sweep")
		return err
	})
	failpoint.Hit("dedup/swept")
	i.instruments.swept.Add(removed, 0)
	return removed, err
}
