package main

import (
	"context"
	"database/sql"
	"fmt"
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
	pace  time.Duration // see order.For
	slow  time.Duration // the same, for writers that must not pause although many messages wait

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
	o := order{Do: doResume, For: l.pace}
	if l.full && l.needed == 0 || l.held > 0 {
		o.Do = doPause
	} else if l.full {
		o.For = max(l.pace, l.slow)
	}
	l.world.tell(writing, o)
}

// need keeps the writers active, even if many messages wait; then they are slow in a cluster. need(1) begins this, and
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

func (l *load) waiting() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.last
}

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

// usage is the number of resources that the processes use while they are idle.
type usage struct {
	goroutines, files map[string]int // by name of the member
	connections       int
	memory            int64 // bytes, of all processes
	sizes
}

// slack is how much higher each number of goroutines, open files and connections may be
// at the end than before the first fault.
const slack = 12

// attended waits until the consumers of both services consume. On a busy machine this may
// take seconds. Until then, their processes use fewer goroutines and connections than
// later. If the usage was measured too early, the later usage would look like a leak.
func (w *world) attended(ctx context.Context) error {
	consumers := len(w.membersOf(consuming))
	wanted := map[string]int{
		queueOf(ledger): consumers, queueOf(notices): consumers, queueOf(accounts): consumers, queueOf(remote): len(w.membersOf(branching)),
	}
	for deadline := time.Now().Add(patience); ; rest(ctx, beatEvery) {
		missing := ""
		err := w.channel(func(channel *amqp.Channel) error {
			for queue, want := range wanted {
				state, err := channel.QueueDeclarePassive(queue, true, false, false, false, nil)
				if err != nil {
					return err
				}
				if state.Consumers < want {
					missing = fmt.Sprintf("queue %s has %d consumers, not %d", queue, state.Consumers, want)
				}
			}
			return nil
		})
		switch {
		case err != nil || missing == "":
			return err
		case ctx.Err() != nil:
			return ctx.Err()
		case time.Now().After(deadline):
			return fmt.Errorf("%s within %v", missing, patience)
		}
	}
}

// rested waits until each process has sent a beat and the number of connections no longer
// decreases. Then it returns the usage.
func (w *world) rested(ctx context.Context) (usage, error) {
	var last usage
	deadline := time.Now().Add(patience)
	for calm := 0; calm < 5; {
		if err := ctx.Err(); err != nil {
			return last, err
		}
		u := usage{goroutines: make(map[string]int), files: make(map[string]int)}
		for _, m := range w.members {
			b := m.beat()
			if b.Goroutines == 0 {
				calm = -1 // the member has not sent a beat yet
			}
			u.goroutines[m.base], u.files[m.base] = b.Goroutines, b.Files
			u.memory += b.Memory
		}
		for _, p := range w.proxies() {
			u.connections += p.open()
		}
		if calm >= 0 && u.connections >= last.connections {
			calm++
		} else {
			calm = 0
		}
		last = u
		if time.Now().After(deadline) {
			return last, fmt.Errorf("processes do not come to rest within %v", patience)
		}
		rest(ctx, 3*beatEvery)
	}
	var err error
	last.sizes, err = w.sizes(ctx)
	return last, err
}

func (u usage) String() string {
	return fmt.Sprintf("%d connections, memory %d MiB, once_outbox %d MiB with indexes, once_parked %d, inbox %d",
		u.connections, u.memory/megabyte, (u.Outbox+u.OutboxIndexes)/megabyte, (u.Parked+u.ParkedIndexes)/megabyte, u.Inbox/megabyte)
}

func (u usage) compare(before usage, r *report) {
	for name, n := range u.goroutines {
		if was := before.goroutines[name]; n > was+slack {
			r.wrongf("%s has %d goroutines, it had %d", name, n, was)
		}
		if was, n := before.files[name], u.files[name]; n > was+slack {
			r.wrongf("%s has %d open files, it had %d", name, n, was)
		}
	}
	if u.connections > before.connections+slack {
		r.wrongf("%d connections are open, there were %d", u.connections, before.connections)
	}
	r.notef("at rest: %v; before: %v", u, before)
}
