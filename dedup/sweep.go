package dedup

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill"

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
// With Config.Key a key stays while a message that waits or is in quarantine has
// it. An Inbox with that Key has to sweep, in a process that handles the
// consumer's messages: any other one leaves a consumer's keys alone while it has
// parked messages that have waited for long and whose keys it does not know.
//
// Of an inbox with the layout schema.ByDay it also makes the partitions of the
// days that come, and removes days that are too old, whose rows it does not
// count: for that it must be called as the owner of the tables. A day that is
// in use is left to the next call.
func (i *Inbox) Sweep(ctx context.Context) (removed int64, err error) {
	i.reminder.over.Store(true)
	if i.config.Schema.Inbox == schema.ByDay {
		removed, err = i.sweepDays(ctx)
	}
	n, failed := i.sweepInbox(ctx)
	removed, err = removed+n, errors.Join(err, failed)
	n, failed = i.sweepOn(ctx, i.sql.sweepParked, i.sql.sweepParkedFrom, -i.config.Retention.Milliseconds(), sweepBatch)
	removed, err = removed+n, errors.Join(err, failed)
	if err != nil {
		err = fmt.Errorf("dedup: sweep: %w", err)
	}
	return removed, err
}

// reminder counts transactions until it is over: the inbox was swept, or it was
// said that it is not.
type reminder struct {
	over  atomic.Bool
	count atomic.Int64
}

// remindAfter is how many transactions an inbox may have before it is swept for
// the first time. Run sweeps at once.
const remindAfter = 1000

// remind logs, once, that nobody removes what is too old.
func (i *Inbox) remind() {
	if i.reminder.over.Load() || i.reminder.count.Add(1) < remindAfter || i.reminder.over.Swap(true) || i.config.SweptElsewhere {
		return
	}
	i.config.Logger.Error("The inbox grows: this process does not remove what is too old",
		errors.New("Inbox.Run was not called: add once.Plugin to the router or call Run, or set Config.SweptElsewhere if another process does"),
		watermill.LogFields{"table": i.config.Schema.Table("inbox"), "retention": i.config.Retention.String()})
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

// sweepOn removes batches of rows, each from where the one before it has come
// to: what must stay is passed over once. from is statement with that place as a
// further argument.
func (i *Inbox) sweepOn(ctx context.Context, statement, from string, args ...any) (removed int64, err error) {
	own := len(args)
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
		statement, args = from, append(args[:own:own], last-1) // which may have been rounded up
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
