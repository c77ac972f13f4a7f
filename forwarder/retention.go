package forwarder

import (
	"context"
	"database/sql"
	"slices"
	"time"

	"github.com/watermill-once/once/internal/adaptive"
	"github.com/watermill-once/once/internal/failpoint"
)

// sentLog is the state of the retention of the sent log.
type sentLog struct {
	busy    bool
	next    time.Time
	portion adaptive.Limit
	fault   fault
}

// forgetAtOnce bounds the rows of the sent log that are deleted in one
// transaction: with SQLite, all others wait for it.
const forgetAtOnce = 1000

// forgetSent deletes rows older than Config.KeepSent from the sent log, one batch
// at a time. The owner of slot 0 does this for all instances.
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
		n, err := l.store.forgetSent(ctx, l.config.KeepSent, most)
		return func() { l.forgotSent(n == int64(most), now, err) }
	})
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
	if more { // wait as long as the batch took, for the other users of the database
		s.next = time.Now().Add(time.Since(began))
	}
}

// forgetSent returns the number of rows that it deleted, at most the given one.
func (s *store) forgetSent(ctx context.Context, keep time.Duration, most int) (n int64, err error) {
	err = s.write(ctx, func(tx *sql.Tx) error {
		result, err := tx.ExecContext(ctx, s.sql.forgetSent, -keep.Milliseconds(), most)
		if err != nil {
			return err
		}
		n, err = result.RowsAffected()
		failpoint.Hit("forwarder/sent-forgotten")
		return err
	})
	return n, err
}
