package main

import (
	"context"
	"fmt"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// usage is the number of resources that the processes use while they are idle.
type usage struct {
	goroutines, files map[string]int // by name of the member
	connections       int
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
	return last, nil
}

// compare adds an entry to the report r for each resource that has grown by more than
// slack since the usage before.
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
	r.notef("at rest: %d connections, before %d", u.connections, before.connections)
}
