package demo

import (
	"context"
	"database/sql"
	"errors"
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
	over   atomic.Bool
	mu     sync.Mutex
	number map[string]int // number of each message, in the order of the first calls
}

// NewOutage returns an outage that has begun.
func NewOutage() *Outage { return &Outage{number: map[string]int{}} }

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
	o.mu.Lock()
	defer o.mu.Unlock()
	if _, known := o.number[id]; !known {
		o.number[id] = len(o.number)
	}
	return o.number[id]%outageShare == 0 && !o.over.Load()
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
