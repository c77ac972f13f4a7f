package forwarder

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/watermill-once/once/internal/dispatch"
)

// loop runs the commands of a dispatch.Scheduler and reports the results to it. A
// single goroutine runs the loop, and only this goroutine calls the Scheduler, which
// therefore needs no lock. Other goroutines do the database work, and publishers add
// their results to a list. Reading, publishing, confirming and deleting happen at the
// same time.
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

// rescanEvery is the time between sweeps from the start of the outbox. Such a sweep
// finds rows that the cursor has passed, for example rows that were changed by hand or
// restored from a backup.
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
			return dispatch.Policy{MaxAttempts: p.MaxAttempts, Backoff: p.Backoff}
		},
		Pause:  pauses,
		Jitter: jitter,
	})
}

// run runs the loop until ctx ends. It then continues until all outcomes are recorded,
// but not longer than CloseTimeout allows.
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

// step starts all work that can start now. It returns true if the loop must end.
func (l *loop) step(now time.Time) (ended bool) {
	l.wakeAt = now.Add(time.Minute)
	l.keepLease(now)
	commands := l.scheduler.Step(now)
	l.wake(commands.WakeAt)
	l.tell(commands.Notices)
	l.execute(commands, now)
	l.forgetSent(now)
	if commands.Drained && l.asked == 0 && !l.releasing {
		l.release()
	}
	l.instruments.note(l.scheduler)
	return l.scheduler.Stopping() && (l.released || commands.Expired)
}

// background calls the function work in another goroutine, where it can use the database.
// Afterwards the loop calls the function that work has returned.
func (l *loop) background(work func(ctx context.Context) (then func())) {
	l.asked++
	timeout := l.config.Lease
	go func() {
		ctx, cancel := context.WithTimeout(l.work, timeout)
		defer cancel()
		l.done <- work(ctx)
	}()
}

// wake makes the loop run its next step at t or earlier.
func (l *loop) wake(t time.Time) {
	if t.Before(l.wakeAt) {
		l.wakeAt = t
	}
}

// stop ends reading and publishing.
func (l *loop) stop(now time.Time) {
	l.scheduler.Stop(now)
	l.sender.gate.Store(false)
}

// release gives the lease back.
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

// report logs how the loop ended. It returns an error if confirmed messages could not
// be deleted.
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
