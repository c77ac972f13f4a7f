package forwarder

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/watermill-once/once/forwarder/internal/dispatch"
	"github.com/watermill-once/once/internal/backoff"
	"github.com/watermill-once/once/internal/failpoint"
	"github.com/watermill-once/once/internal/outboxrow"
)

// loop runs the commands of a dispatch.Scheduler and reports the results to it. Only its goroutine
// calls the Scheduler, which needs no lock. Other goroutines do the database work, and publishers
// add their results to a list. Reading, publishing, confirming and deleting happen at the same
// time.
type loop struct {
	*Forwarder

	scheduler *dispatch.Scheduler
	failures  failures

	work   context.Context // context of all database work
	cancel context.CancelFunc
	done   chan func() // functions that the loop calls after database work has ended
	asked  int         // number of database operations that have not ended
	wakeAt time.Time   // when to run the next step if no event comes earlier

	tenure tenure
	log    sentLog
	used   []result // slice whose memory is used for the next results

	settleErr error // error of the last settlement
	releasing bool
	released  bool
	refusal   error // error that Run must return, or nil
}

func newLoop(f *Forwarder) *loop {
	l := &loop{Forwarder: f, scheduler: newScheduler(f.config), done: make(chan func(), 8)}
	l.work, l.cancel = context.WithCancel(context.Background())
	return l
}

// rescanEvery is the time between sweeps from the start of the outbox, which find rows that the
// cursor has passed, for example rows changed by hand or restored from a backup.
const rescanEvery = time.Minute

func newScheduler(c Config) *dispatch.Scheduler {
	return dispatch.New(dispatch.Config{
		BatchSize:     c.BatchSize,
		Window:        c.Window,
		BufferBytes:   c.BufferBytes,
		PollMin:       c.PollMin,
		PollMax:       c.PollMax,
		StallTimeout:  c.StallTimeout,
		LookaheadRows: lookaheadRows(c.Schema),
		CloseTimeout:  c.CloseTimeout,
		RescanEvery:   rescanEvery,
		Policy: func(topic string) dispatch.Policy {
			p := c.policy(topic)
			return dispatch.Policy{MaxAttempts: p.MaxAttempts, Backoff: guarded(p.Backoff, c.Logger)}
		},
		Pause:  pauses,
		Jitter: jitter,
	})
}

// run runs until ctx ends, and then until all outcomes are recorded or CloseTimeout is over.
func (l *loop) run(ctx context.Context) error {
	defer l.cancel()
	stop := ctx.Done()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		now := time.Now()
		if l.step(now) {
			return l.report()
		}
		timer.Reset(l.wakeAt.Sub(now))

		select {
		case <-timer.C:
		case <-l.sender.results.some:
			l.processConfirms(time.Now())
		case then := <-l.done:
			l.asked--
			then()
		case <-l.hints:
			l.scheduler.Hint(time.Now())
		case <-stop:
			stop = nil
			l.stop(time.Now())
		}
	}
}

func (l *loop) step(now time.Time) (ended bool) {
	l.wakeAt = now.Add(time.Minute)
	l.keepLease(now)
	commands := l.scheduler.Step(now)
	l.wake(commands.WakeAt)
	if commands.Write { // renewing the lease writes
		l.tenure.next = now
		l.wake(now)
	}
	l.tell(commands.Notices)
	l.execute(commands, now)
	l.forgetSent(now)
	if commands.Drained && l.asked == 0 && !l.releasing {
		l.release()
	}
	l.instruments.note(l.scheduler)
	return l.scheduler.Stopping() && (l.released || commands.Expired)
}

// background calls work in another goroutine, and then the returned function in the loop.
func (l *loop) background(work func(ctx context.Context) (then func())) {
	l.asked++
	timeout := l.config.Lease
	go func() {
		ctx, cancel := context.WithTimeout(l.work, timeout)
		defer cancel()
		l.done <- work(ctx)
	}()
}

func (l *loop) wake(t time.Time) {
	if t.Before(l.wakeAt) {
		l.wakeAt = t
	}
}

func (l *loop) stop(now time.Time) {
	l.scheduler.Stop(now)
	l.sender.gate.Store(false)
}

func (l *loop) release() {
	l.releasing = true
	l.background(func(ctx context.Context) func() {
		err := l.store.leave(ctx)
		return func() {
			if err != nil {
				l.config.Logger.Error("The lease could not be given back, it will run out", err, nil)
			}
			l.released = true
		}
	})
}

// report returns an error if confirmed messages could not be deleted.
func (l *loop) report() error {
	lost := l.scheduler.Unrecorded()
	fields := watermill.LogFields{
		"confirmed":   l.scheduler.Confirms(),
		"handed_back": l.scheduler.Returned(),
	}
	if lost == 0 {
		l.config.Logger.Info("Forwarder closed", fields)
		return nil
	}
	fields["not_deleted"] = lost
	err := fmt.Errorf("forwarder: closed with %d confirmed messages that could not be deleted and will be sent again", lost)
	l.config.Logger.Error("Forwarder closed", errors.Join(err, l.settleErr), fields)
	return err
}

// sentLog records when old rows of the sent log are deleted next, and whether that failed.
type sentLog struct {
	busy    bool
	next    time.Time
	portion backoff.Limit
	fault   fault
	told    bool // whether the log already says that the owner of the table must drop old days
}

// In SQLite, all other writers wait for the transaction that deletes forgetAtOnce rows.
const forgetAtOnce = 1000

// forgetSent deletes rows older than Config.KeepSent in batches, or drops the partitions of old
// days. The owner of slot 0 does it for all instances.
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
		days, err := outboxrow.SweepSentDays(ctx, l.store.db, l.store.dialect, l.config.KeepSent)
		if err != nil || days.ByDay {
			return func() { l.sweptDays(days, now, err) }
		}
		n, err := l.store.forgetSent(ctx, l.config.KeepSent, most)
		return func() { l.forgotSent(n == int64(most), now, err) }
	})
}

func (l *loop) sweptDays(days outboxrow.SentDays, began time.Time, err error) {
	if err == nil && !days.Owner && !l.log.told {
		l.log.told = true
		l.config.Logger.Info("The sent log is partitioned by day, and this user does not own it: its owner must drop old days",
			watermill.LogFields{"table": l.config.Schema.Table("outbox_sent"), "call": "once sweep --keep-sent, or dead.SentLog.SweepDays"})
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
