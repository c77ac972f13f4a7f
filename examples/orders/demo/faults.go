package demo

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once"
	"github.com/watermill-once/once/examples/orders/service"
)

// Faults is everything that goes wrong in a run, on purpose. Nil is a run in
// which nothing does. What goes wrong is counted off, not left to chance.
type Faults struct {
	orders   int // of the run
	injected Injected
	mended   atomic.Bool

	mu    sync.Mutex
	fates map[string]*fate // by consumer and message
}

// fate is what is in store for a consumer's handling of a message.
type fate struct {
	number int // in order of their first calls
	calls  int
}

// Injected counts what was done.
type Injected struct {
	Duplicates       atomic.Int64 // messages that were published twice
	Failures         atomic.Int64 // handlers that failed
	Panics           atomic.Int64 // handlers that panicked
	Poisonous        atomic.Int64 // orders that a handler always fails for, until it is mended
	Malformed        atomic.Int64 // messages that can never be applied
	ForwarderKills   atomic.Int64 // forwarders that were stopped with messages in flight
	RepeatedRequests atomic.Int64 // clients that asked twice at once
}

// NewFaults returns the faults of a run of so many orders.
func NewFaults(orders int) *Faults { return &Faults{orders: orders, fates: map[string]*fate{}} }

// Hooks injects the faults into a service.
func (f *Faults) Hooks() service.Hooks {
	if f == nil {
		return service.Hooks{}
	}
	return service.Hooks{Handler: f.handler, Forwarder: f.forwarder}
}

var (
	errInjected = errors.New("demo: injected failure")
	errCursed   = errors.New("demo: the handler cannot do this order")
)

// handler has a handler fail for some messages, before it has done anything or
// after it has done everything, and for some for good.
func (f *Faults) handler(consumer string, handle once.HandlerFunc) once.HandlerFunc {
	return func(ctx context.Context, tx *sql.Tx, msg *message.Message) ([]*message.Message, error) {
		if !f.mended.Load() && bytes.Contains(msg.Payload, []byte(cursedFor(consumer))) {
			return nil, errCursed
		}
		number, call := f.call(consumer, msg.UUID)
		switch luck := number % 100; {
		case luck < 4 && call == 1:
			_, err := handle(ctx, tx, msg)
			f.injected.Panics.Add(1)
			panic(fmt.Sprintf("demo: injected panic (%v)", err))
		case luck < 10 && call <= 1+luck%4:
			f.injected.Failures.Add(1)
			return nil, errInjected
		case luck < 16 && call <= 1+luck%4:
			_, err := handle(ctx, tx, msg)
			f.injected.Failures.Add(1)
			return nil, errors.Join(err, errInjected)
		}
		return handle(ctx, tx, msg)
	}
}

// call counts the handler's calls for a message, from 1.
func (f *Faults) call(consumer, id string) (number, call int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	key := consumer + " " + id
	if f.fates[key] == nil {
		f.fates[key] = &fate{number: len(f.fates)}
	}
	f.fates[key].calls++
	return f.fates[key].number, f.fates[key].calls
}

// curse makes some orders ones that a handler cannot do.
func (f *Faults) curse(n int, order *service.NewOrder) {
	if f == nil || n%40 != 0 {
		return
	}
	consumer := []string{"payments", "inventory"}[n/40%2]
	order.Lines[0].SKU = cursedFor(consumer)
	f.injected.Poisonous.Add(1)
}

func cursedFor(consumer string) string { return "cursed-for-" + consumer }

// mend has handlers do what they could not.
func (f *Faults) mend() { f.mended.Store(true) }

// repeats says whether the client of the nth order asks twice at once.
func (f *Faults) repeats(n int) bool {
	if f == nil || n%8 != 0 {
		return false
	}
	f.injected.RepeatedRequests.Add(1)
	return true
}

// reuses says whether the client of the nth order uses its key once more, for
// another order.
func (f *Faults) reuses(n int) bool { return f != nil && n%25 == 0 }
