package demo

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once"
	"github.com/watermill-once/once/examples/orders/service"
	"github.com/watermill-once/once/operate"
)

// Outage is a payment gateway that is down for a part of the orders until their
// messages are in quarantine. Then the gateway works again, and an operator must replay
// the messages.
type Outage struct {
	all    bool // the gateway is down for all orders
	calls  atomic.Int32
	over   atomic.Bool
	mu     sync.Mutex
	number map[string]int // number of each message, in the order of the first calls
}

// NewOutage returns an outage that has begun.
func NewOutage() *Outage { return &Outage{number: map[string]int{}} }

// NewProviderOutage returns an outage of the whole gateway that has begun.
func NewProviderOutage() *Outage { return &Outage{all: true} }

// errGateway is a failure in another company's system. A later retry or replay can
// succeed.
var errGateway = errors.New("payment gateway: 503 Service Unavailable")

// outageShare says how many orders the outage affects: one in outageShare.
const outageShare = 4

// Hooks returns the hooks that add the outage to a service. A nil Outage returns no
// hooks.
func (o *Outage) Hooks() service.Hooks {
	if o == nil {
		return service.Hooks{}
	}
	return service.Hooks{Handler: func(consumer string, handle once.HandlerFunc) once.HandlerFunc {
		if consumer != service.Payments {
			return handle
		}
		return func(ctx context.Context, tx *sql.Tx, msg *message.Message) ([]*message.Message, error) {
			if o.hits(msg.UUID) {
				return nil, errGateway
			}
			return handle(ctx, tx, msg)
		}
	}}
}

func (o *Outage) hits(id string) bool {
	if o.all {
		down := !o.over.Load()
		if down {
			o.calls.Add(1)
		}
		return down
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if _, known := o.number[id]; !known {
		o.number[id] = len(o.number)
	}
	return o.number[id]%outageShare == 0 && !o.over.Load()
}

// providerOutage is how long the gateway is down for all orders.
const providerOutage = 10 * time.Second

// RunProvider places the orders of d while the gateway is down, ends the outage after
// providerOutage, and waits until all payments are captured. It returns the number of calls during
// the outage.
func (o *Outage) RunProvider(ctx context.Context, d *Demo) (calls int, err error) {
	store := d.Audit.of(service.Payments)
	l := newLoad(d.URL, nil)
	end := time.AfterFunc(providerOutage, func() { o.over.Store(true) })
	defer end.Stop()
	l.place(ctx, d.Orders, func() error { return nil })
	if err := errors.Join(l.errs...); err != nil {
		return 0, err
	}
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		var paid int
		if err := store.DB.QueryRowContext(ctx, `SELECT COUNT(*) FROM payments`).Scan(&paid); err != nil {
			return 0, err
		}
		lost, err := store.Quarantine.Count(ctx, operate.Filter{Consumer: service.Payments})
		switch {
		case err != nil:
			return 0, err
		case lost.N > 0:
			return 0, fmt.Errorf("%d payments are in quarantine", lost.N)
		case paid >= d.Orders && o.over.Load():
			return int(o.calls.Load()), nil
		}
		select {
		case <-ctx.Done():
			return 0, ctx.Err()
		case <-tick.C:
		}
	}
}

// Run places the orders of d, waits until the messages that the outage affects are in
// quarantine, and ends the outage. It returns the number of these messages.
func (o *Outage) Run(ctx context.Context, d *Demo) (int, error) {
	entries, n := d.Audit.of(service.Payments).Quarantine, d.Orders
	l := newLoad(d.URL, nil)
	l.place(ctx, n, func() error { return nil })
	if err := errors.Join(l.errs...); err != nil {
		return 0, err
	}
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		count, err := entries.Count(ctx, operate.Filter{Consumer: service.Payments})
		if err != nil {
			return 0, err
		}
		if count.N >= (n+outageShare-1)/outageShare {
			o.over.Store(true)
			return count.N, nil
		}
		select {
		case <-ctx.Done():
			return 0, ctx.Err()
		case <-tick.C:
		}
	}
}
