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

	"github.com/watermill-once/once/internal/dialect"
	"github.com/watermill-once/once/internal/failpoint"
	"github.com/watermill-once/once/internal/telemetry"
	"github.com/watermill-once/once/schema"
)

const sweepBatch = 2000

// Run calls [Inbox.Sweep] every Config.SweepInterval until ctx ends, and then returns
// nil. Any number of processes may call Run; they do not wait for each other. If the
// database returns an error, Run logs it and continues with the next sweep. After the
// first successful sweep it logs the result of [schema.Durability].
func (i *Inbox) Run(ctx context.Context) error {
	tick := time.NewTicker(i.config.SweepInterval)
	defer tick.Stop()
	defer i.observeSize()()
	failing, durabilityLogged := false, false
	for {
		_, err := i.Sweep(ctx)
		if err == nil && !durabilityLogged {
			i.dialect.LogDurability(ctx, i.db, i.config.Logger)
			durabilityLogged = true
		}
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil && !failing:
			i.config.Logger.Error("Sweep of the inbox failed, will be tried again", err, nil)
		case err == nil && failing:
			i.config.Logger.Info("Sweep of the inbox works again", nil)
		}
		failing = err != nil
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
	}
}

// Sweep removes rows that are older than Config.Retention by the clock of the database, and returns
// the number of removed rows. It uses short transactions, and removes
//
//   - ids of handled messages, except the ids of messages that are parked or in
//     quarantine, because these may run again;
//   - parked messages that were resolved or discarded, except the messages of a replay
//     that has not finished.
//
// With Config.Key, Sweep keeps the keys of parked and quarantined messages. At least one process
// that handles the consumer's messages with this Key must sweep, because others cannot compute
// them. While a consumer has old parked messages whose keys are unknown, Sweep keeps all of its
// keys.
//
// With the layout schema.ByDay, Sweep also creates the partitions of future days, and empties and
// drops expired partitions. It does not count their rows. For this work, the database role of this
// process must own the tables. If a partition is in use, Sweep leaves it to the next call.
func (i *Inbox) Sweep(ctx context.Context) (removed int64, err error) {
	i.sweepWarning.off.Store(true)
	if i.config.Schema.Inbox == schema.ByDay {
		removed, err = i.sweepDays(ctx)
	}
	n, failed := i.sweepInbox(ctx)
	removed, err = removed+n, errors.Join(err, failed)
	n, failed = i.sweepForward(ctx, i.sql.sweepParked, i.sql.sweepParkedFrom, -i.config.Retention.Milliseconds(), sweepBatch)
	removed, err = removed+n, errors.Join(err, failed)
	i.instruments.sweeps.Add(1, telemetry.Succeeded(err))
	if err != nil {
		err = fmt.Errorf("dedup: sweep: %w", err)
	}
	return removed, err
}

// sweepWarning counts transactions until the first sweep or warning.
type sweepWarning struct {
	off          atomic.Bool
	transactions atomic.Int64
}

// warnAfter is the number of transactions without a sweep after which a warning is logged. Run
// sweeps as soon as it starts.
const warnAfter = 1000

func (i *Inbox) warnIfNotSwept() {
	w := &i.sweepWarning
	if w.off.Load() || w.transactions.Add(1) < warnAfter || w.off.Swap(true) || i.config.SweptElsewhere {
		return
	}
	i.config.Logger.Error("The inbox grows: this process does not remove expired rows",
		errors.New("Inbox.Run was not called: add once.Plugin to the router or call Run, or set Config.SweptElsewhere if another process does"),
		watermill.LogFields{"table": i.config.Schema.Table("inbox"), "retention": i.config.Retention.String()})
}

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
	return i.removeInTx(ctx, func(tx *sql.Tx) (int64, error) {
		result, err := tx.ExecContext(ctx, query, -i.config.Retention.Milliseconds(), sweepBatch)
		if err != nil {
			return 0, err
		}
		return result.RowsAffected()
	})
}

// sweepForward removes rows in batches. nextStatement begins at the time at which the previous
// batch ended, an additional argument, so that rows that must stay are read only once.
func (i *Inbox) sweepForward(ctx context.Context, statement, nextStatement string, args ...any) (removed int64, err error) {
	own := len(args)
	for {
		last := int64(math.MinInt64)
		n, err := i.removeInTx(ctx, func(tx *sql.Tx) (n int64, err error) {
			err = dialect.EachRow(ctx, tx, func(scan func(...any) error) error {
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
		statement, args = nextStatement, append(args[:own:own], last-1) // last may have been rounded up
	}
}

func (i *Inbox) removeInTx(ctx context.Context, remove func(tx *sql.Tx) (int64, error)) (removed int64, err error) {
	err = i.dialect.Write(ctx, i.db, func(tx *sql.Tx) error {
		removed, err = remove(tx)
		failpoint.Hit("dedup/sweep")
		return err
	})
	failpoint.Hit("dedup/swept")
	i.instruments.swept.Add(removed, 0)
	return removed, err
}
