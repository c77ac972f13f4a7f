package forwarder

import (
	"context"
	"database/sql"
	"slices"
	"time"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/watermill-once/once/internal/adaptive"
	"github.com/watermill-once/once/internal/failpoint"
	"github.com/watermill-once/once/internal/sentdays"
)

// sentLog records when the loop next deletes old rows from the sent log, and whether
// earlier deletions failed.
type sentLog struct {
	busy    bool
	next    time.Time
	portion adaptive.Limit
	fault   fault
	told    bool // whether the log already says that the owner of the table must drop old days
}

// forgetAtOnce is the maximum number of rows of the sent log that one transaction
// deletes. In SQLite, all other writers wait for this transaction.
const forgetAtOnce = 1000

// forgetSent removes rows that are older than Config.KeepSent from the sent log: it
// deletes them in batches, or drops the partitions of old days. The owner of slot 0
// does this for all instances.
func (l *loop) forgetSent(now time.Time) {
	s := &l.log
	if l.config.KeepSent == 0 || s.busy || l.scheduler.Stopping() || !slices.Contains(l.scheduler.Slots(), 0) || s.fault.waits(l, now) {
		return
	}
	if now.Before(s.next) {
		l.wake(s.next)
		return
	}
	s.busy = true
	most := s.portion.Of(forgetAtOnce)
	l.background(func(ctx context.Context) func() {
		days, err := sentdays.Sweep(ctx, l.store.db, l.store.dialect, l.config.KeepSent)
		if err != nil || days.ByDay {
			return func() { l.sweptDays(days, now, err) }
		}
		n, err := l.store.forgetSent(ctx, l.config.KeepSent, most)
		return func() { l.forgotSent(n == int64(most), now, err) }
	})
}

// sweptDays processes the result of dropping old days from a sent log that has one
// partition for each day.
func (l *loop) sweptDays(days sentdays.Result, began time.Time, err error) {
	if err == nil && !days.Owner && !l.log.told {
		l.log.told = true
		l.config.Logger.Info("The sent log is partitioned by day, and this user does not own it: its owner must drop old days",
			watermill.LogFields{"table": l.config.Schema.Table("outbox_sent"), "call": "once sweep --keep-sent, or deadletter.SentLog.SweepDays"})
	}
	l.forgotSent(false, began, err)
}

func (l *loop) forgotSent(more bool, began time.Time, err error) {
	s := &l.log
	s.busy = false
	s.portion.Did(err == nil)
	if err != nil {
		s.fault.failed(l, retentionTexts, err)
		return
	}
	s.fault.worked(l, retentionTexts)
	s.next = began.Add(min(time.Minute, l.config.KeepSent/60))
	if more { // pause as long as the batch took, so that other users of the database can work
		s.next = time.Now().Add(time.Since(began))
	}
}

// forgetSent deletes rows of the sent log that are older than the parameter keep. The
// parameter limit is the maximum number of rows to delete. It returns the number of
// deleted rows.
func (s *store) forgetSent(ctx context.Context, keep time.Duration, limit int) (n int64, err error) {
	err = s.write(ctx, func(tx *sql.Tx) error {
		result, err := tx.ExecContext(ctx, s.sql.forgetSent, -keep.Milliseconds(), limit)
		if err != nil {
			return err
		}
		n, err = result.RowsAffected()
		failpoint.Hit("forwarder/sent-forgotten")
		return err
	})
	return n, err
}
