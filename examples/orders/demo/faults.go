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

// Faults injects the faults of a run. A nil *Faults injects none. Which messages fail
// depends on the order in which they arrive, not on chance, so every kind of fault
// happens.
type Faults struct {
	orders   int // number of orders in the run
	injected Injected
	repaired atomic.Bool

	mu    sync.Mutex
	fates map[string]*fate // key: consumer and message
}

// fate counts how often a consumer was called for a message.
type fate struct {
	number int // number of the message, in the order of the first calls
	calls  int
}

// Injected counts the injected faults.
type Injected struct {
	Duplicates       atomic.Int64 // messages that were published twice
	Failures         atomic.Int64 // handlers that failed
	Panics           atomic.Int64 // handlers that panicked
	Poisonous        atomic.Int64 // orders for which a handler fails until it is repaired
	Malformed        atomic.Int64 // messages that no consumer can apply
	ForwarderKills   atomic.Int64 // forwarders that were stopped before all confirms had arrived
	RepeatedRequests atomic.Int64 // clients that sent a request twice at the same time
}

// NewFaults returns the faults for a run with the given number of orders.
func NewFaults(orders int) *Faults { return &Faults{orders: orders, fates: map[string]*fate{}} }

// Hooks returns the hooks that inject the faults into a service.
func (f *Faults) Hooks() service.Hooks {
	if f == nil {
		return service.Hooks{}
	}
	return service.Hooks{Handler: f.handler, Forwarder: f.forwarder}
}

var (
	errInjected  = errors.New("demo: injected failure")
	errPoisonous = errors.New("demo: the handler cannot handle this order")
)

// handler makes a handler fail for some messages: before it writes, after it has
// written, or each time until it is repaired.
func (f *Faults) handler(consumer string, handle once.HandlerFunc) once.HandlerFunc {
	return func(ctx context.Context, tx *sql.Tx, msg *message.Message) ([]*message.Message, error) {
		if !f.repaired.Load() && bytes.Contains(msg.Payload, []byte(poisonousFor(consumer))) {
			return nil, errPoisonous
		}
		number, call := f.call(consumer, msg.UUID)
		switch share := number % 100; {
		case share < 4 && call == 1:
			_, err := handle(ctx, tx, msg)
			f.injected.Panics.Add(1)
			panic(fmt.Sprintf("demo: injected panic (%v)", err))
		case share < 10 && call <= 1+share%4:
			f.injected.Failures.Add(1)
			return nil, errInjected
		case share < 16 && call <= 1+share%4:
			_, err := handle(ctx, tx, msg)
			f.injected.Failures.Add(1)
			return nil, errors.Join(err, errInjected)
		}
		return handle(ctx, tx, msg)
	}
}

// call counts a call of the handler for a message. It returns the number of the
// message, and the number of calls for it: 1 at the first call.
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

// poison makes some orders poisonous for one handler: the handler fails for these
// orders until repair is called.
func (f *Faults) poison(n int, order *service.NewOrder) {
	if f == nil || n%40 != 0 {
		return
	}
	consumer := []string{"payments", "inventory"}[n/40%2]
	order.Customer = poisonousFor(consumer)
	f.injected.Poisonous.Add(1)
}

// poisonousFor returns the customer who makes an order poisonous for a consumer.
func poisonousFor(consumer string) string { return "poisonous-for-" + consumer }

// repair makes the handlers accept the poisonous orders.
func (f *Faults) repair() { f.repaired.Store(true) }

// repeats reports whether the client of the nth order sends its request twice at
// the same time.
func (f *Faults) repeats(n int) bool {
	if f == nil || n%8 != 0 {
		return false
	}
	f.injected.RepeatedRequests.Add(1)
	return true
}

// reuses reports whether the client of the nth order sends another order with the
// same key.
func (f *Faults) reuses(n int) bool { return f != nil && n%25 == 0 }
