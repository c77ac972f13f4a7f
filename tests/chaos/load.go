package main

import (
	"context"
	"database/sql"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// mostWaiting is the number of waiting messages above which the writers pause. They
// continue when the number has fallen to half of it.
const mostWaiting = 2000

// load pauses and resumes the writers, so that they do not write more than the
// consumers can apply.
type load struct {
	world *world
	most  int64

	mu     sync.Mutex
	full   bool
	needed int // number of faults that need active writers
	held   int // number of faults that need paused writers
	last   int64
}

func (l *load) run(ctx context.Context) {
	for ctx.Err() == nil {
		if n, err := l.world.backlog(ctx); err == nil {
			l.mu.Lock()
			l.last = n
			l.full = n > l.most || l.full && n > l.most/2
			l.mu.Unlock()
			l.apply()
		}
		rest(ctx, 300*time.Millisecond)
	}
}

func (l *load) apply() {
	l.mu.Lock()
	defer l.mu.Unlock()
	do := doResume
	if l.full && l.needed == 0 || l.held > 0 {
		do = doPause
	}
	l.world.tell(writing, order{Do: do})
}

// need keeps the writers active, even if many messages wait. need(1) begins this, and
// need(-1) ends it.
func (l *load) need(n int) {
	l.mu.Lock()
	l.needed += n
	l.mu.Unlock()
	l.apply()
}

// hold pauses the writers. hold(1) begins this, and hold(-1) ends it.
func (l *load) hold(n int) {
	l.mu.Lock()
	l.held += n
	l.mu.Unlock()
	l.apply()
}

// waiting returns the latest count of the backlog.
func (l *load) waiting() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.last
}

// backlog returns the number of messages that are in the outbox, in the queues, or
// parked, in both services.
func (w *world) backlog(ctx context.Context) (int64, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	var n int64
	for _, db := range []*sql.DB{w.db, w.branch} {
		var waiting int64
		if err := db.QueryRowContext(ctx, `
			SELECT (SELECT COUNT(*) FROM once_outbox) + (SELECT COUNT(*) FROM once_parked WHERE state = 'waiting')`).Scan(&waiting); err != nil {
			return 0, err
		}
		n += waiting
	}
	return n, w.channel(func(channel *amqp.Channel) error {
		for _, queue := range []string{queueOf(ledger), queueOf(notices), queueOf(accounts), queueOf(replies), queueOf(remote), recorderQueue} {
			state, err := channel.QueueDeclarePassive(queue, true, false, false, false, nil)
			if err != nil {
				return err
			}
			n += int64(state.Messages)
		}
		return nil
	})
}

// idle reports whether all messages are finished. It checks this several times within
// about a second.
func (w *world) idle(ctx context.Context) bool {
	written := int64(-1)
	for range 3 {
		if n, err := w.backlog(ctx); err != nil || n != 0 {
			return false
		}
		for _, m := range w.members {
			b := m.beat()
			if b.Counts["once.subscriber.in_flight"] != 0 || b.Counts["once.forwarder.in_flight"] != 0 {
				return false
			}
		}
		n := w.number(ctx, `SELECT COUNT(*) FROM business`)
		if n < 0 || written >= 0 && n != written {
			return false
		}
		written = n
		rest(ctx, 2*beatEvery)
	}
	return ctx.Err() == nil
}
