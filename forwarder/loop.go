package forwarder

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill"
)

// loop is a forwarder at work. One goroutine has all of it: reads and
// settlements, one of each at a time, and the publisher's answers are reported
// to it, so that reading, publishing, confirming and deleting overlap without
// a lock.
type loop struct {
	*Forwarder

	work   context.Context // of everything that is asked of the database
	cancel context.CancelFunc
	done   chan func() // what follows from database work that has ended
	asked  int         // pieces of it that have not
	alarm  time.Time   // when to look again if nothing happens

	buffer   buffer
	cursor   cursor
	tenure   tenure
	reading  reading
	settling settling
	log      sentLog
	wire     wire
	topics   topics
	suspicion

	stopping  bool
	gaveUp    bool      // waiting for answers
	until     time.Time // when it or stopping itself ends, whatever is left
	releasing bool
	released  bool
	refusal   error // why it must not go on
}

func newLoop(f *Forwarder) *loop {
	l := &loop{Forwarder: f, done: make(chan func(), 8), buffer: newBuffer(4 * max(f.config.Window, f.config.BatchSize))}
	l.work, l.cancel = context.WithCancel(context.Background())
	return l
}

// run works until ctx ends, and then until nothing is left to be done or the
// time for that is over.
func (l *loop) run(ctx context.Context) error {
	defer l.cancel()
	stop := ctx.Done()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		now := time.Now()
		l.alarm = now.Add(time.Minute)
		l.act(now)
		l.instruments.note(l)
		if l.stopping && (l.released || !now.Before(l.until)) {
			return l.report()
		}
		timer.Reset(l.alarm.Sub(now))

		select {
		case <-timer.C:
		case <-l.sender.answers.some:
			l.hear(time.Now())
		case then := <-l.done:
			l.asked--
			then()
		case <-l.hints:
			l.reading.hint()
		case <-stop:
			stop = nil
			l.stop(time.Now())
		}
	}
}

// act starts everything that can be started.
func (l *loop) act(now time.Time) {
	l.keepLease(now)
	l.watchTopics(now)
	l.read(now)
	l.publish(now)
	l.settle(now)
	l.forgetSent(now)
	if l.stopping {
		l.finish(now)
	}
}

// ask has work done in the background, one piece of database work, and what it
// returns called by the loop.
func (l *loop) ask(work func(ctx context.Context) (then func())) {
	l.asked++
	timeout := l.config.Lease
	go func() {
		ctx, cancel := context.WithTimeout(l.work, timeout)
		defer cancel()
		l.done <- work(ctx)
	}()
}

// at has the loop look again at t, if nothing happens before.
func (l *loop) at(t time.Time) {
	if t.Before(l.alarm) {
		l.alarm = t
	}
}

// worked notes that database work succeeded. If it failed before, the database
// may be another one by now, so nothing is taken for read any more.
func (l *loop) worked(f *fault, what string) {
	if f.worked(l, what) {
		l.reading.rescan = time.Time{}
	}
}

// rewind has everything above position read again.
func (l *loop) rewind(position int64) {
	l.cursor.rewind(position)
	l.buffer.low = l.cursor.low
}

// stop begins to end: nothing more is sent.
func (l *loop) stop(now time.Time) {
	l.stopping = true
	l.until = now.Add(l.config.CloseTimeout)
	l.sender.gate.Store(false)
}

// finish gives the lease back when everything has been answered and recorded.
func (l *loop) finish(now time.Time) {
	l.at(l.until)
	switch waiting := l.wire.inFlight > 0 && !l.gaveUp; {
	case waiting && now.Before(l.until):
	case waiting: // the rest of the time is the database's
		l.gaveUp = true
		l.until = now.Add(l.config.CloseTimeout)
		l.at(now)
	case l.asked > 0 || !l.settling.waiting.empty():
	default:
		l.releasing = true
		l.ask(func(ctx context.Context) func() {
			err := l.store.leave(ctx)
			return func() {
				if err != nil {
					l.config.Logger.Error("The lease could not be given back, it will run out", err, nil)
				}
				l.released = true
			}
		})
	}
}

// report says how it ended.
func (l *loop) report() error {
	lost := len(l.settling.waiting.confirmed) + l.settling.unsure
	fields := watermill.LogFields{
		"confirmed":   l.wire.confirms,
		"handed_back": l.wire.handedBack + l.wire.inFlight,
	}
	if lost == 0 {
		l.config.Logger.Info("Forwarder closed", fields)
		return nil
	}
	fields["not_deleted"] = lost
	err := fmt.Errorf("forwarder: closed with %d confirmed messages that could not be deleted and will be sent again", lost)
	l.config.Logger.Error("Forwarder closed", errors.Join(err, l.settling.err), fields)
	return err
}
