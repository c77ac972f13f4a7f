package parked

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
)

type contextKey int

const (
	deliveryKey contextKey = iota
	subscriptionKey
	txKey
	triedKey
)

// TxContext is a context with the transaction of the message that is being handled.
type TxContext struct {
	context.Context

	// Mark sets what a message that the handler sends inherits from the message that
	// is being handled. It is nil if several messages are handled together.
	Mark func(produced *message.Message)

	tx *sql.Tx

	mu    sync.Mutex
	ended bool // the handler has returned
	after []func()
}

// WithTx returns ctx with the transaction of the message that is being handled.
func WithTx(ctx context.Context, tx *sql.Tx) *TxContext { return &TxContext{Context: ctx, tx: tx} }

// Value implements context.Context.
func (c *TxContext) Value(key any) any {
	if key == txKey {
		return c
	}
	return c.Context.Value(key)
}

// TxOf returns the transaction of the message that is being handled.
func TxOf(ctx context.Context) (*sql.Tx, bool) {
	c, ok := ctx.Value(txKey).(*TxContext)
	if !ok {
		return nil, false
	}
	return c.tx, true
}

// Mark sets what msg inherits from the message that is being handled in ctx, if any.
func Mark(ctx context.Context, msg *message.Message) {
	if c, ok := ctx.Value(txKey).(*TxContext); ok && c.Mark != nil {
		c.Mark(msg)
	}
}

// AfterCommit adds f to the functions of the transaction in ctx. It returns an error
// if ctx has no transaction, or its handler has returned.
func AfterCommit(ctx context.Context, f func()) error {
	c, ok := ctx.Value(txKey).(*TxContext)
	if !ok {
		return errors.New("the context has no transaction: pass the context that the handler got")
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended {
		return errors.New("the handler has returned: call AfterCommit before that")
	}
	c.after = append(c.after, f)
	return nil
}

// End returns the functions that must be called after the commit, and refuses
// others. The handler has returned.
func (c *TxContext) End() []func() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ended = true
	return c.after
}

// ErrInsideDedup says that poison or retry is inside of dedup. There it would
// commit the writes of a failed handler, and the inbox would count the message as
// handled: no retry or replay would run it again.
var ErrInsideDedup = errors.New(
	"the middleware is inside of dedup's: from the outside in the order is poison, retry, dedup")

// tried is a message that retry passes to the middlewares inside of it.
type tried struct {
	msg          *message.Message
	failedBefore bool
}

// WithTried returns ctx for the message that retry passes on. failedBefore tells
// whether an earlier call of its handler failed.
func WithTried(ctx context.Context, msg *message.Message, failedBefore bool) context.Context {
	return context.WithValue(ctx, triedKey, tried{msg, failedBefore})
}

// Tried reports whether a middleware that gets msg with ctx is inside of retry. It
// returns false if ctx belongs to another message: a handler may have passed ctx
// on.
func Tried(ctx context.Context, msg *message.Message) bool {
	t, ok := ctx.Value(triedKey).(tried)
	return ok && t.msg == msg
}

// FailedBefore reports whether an earlier call of the handler of the message
// failed, or a process ended during one.
func FailedBefore(ctx context.Context) bool {
	if t, ok := ctx.Value(triedKey).(tried); ok && t.failedBefore {
		return true
	}
	claim := DeliveryOf(ctx).Claim
	return claim != nil && (claim.Attempts > 0 || claim.Crashes > 1)
}

// Delivery describes how a message came to its handler.
type Delivery struct {
	// Consumer is the stable name under which the message is handled.
	Consumer string

	// Topic is the topic of the subscription.
	Topic string

	// Subscribed reports whether retry's Subscriber delivered the message. If true, a parked message is delivered again.
	Subscribed bool

	// Use is the subscription; nil without retry's Subscriber.
	Use *Use

	// Claim is the claim of the message's row; nil if the message comes from the
	// transport.
	Claim *Claim

	// Closing is closed when the consumer is shutting down.
	Closing <-chan struct{}

	// Wake makes the consumer look for new rows at once, if not nil.
	Wake func()

	// arrived is the message's context as the subscriber delivered it. Middlewares may
	// pass on another one, for example with a deadline.
	arrived context.Context

	madeDue atomic.Bool
}

// MakesDue notes that the transaction of the message makes a row due.
func (d *Delivery) MakesDue() { d.madeDue.Store(true) }

// Committed makes the consumer look for the rows that the transaction has made
// due.
func (d *Delivery) Committed() {
	if d.Wake != nil && d.madeDue.Load() {
		d.Wake()
	}
}

// CheckLease returns [ErrClaimLost] if the message comes from a row whose lease may
// have ended. Then no work may begin for the message.
func (d *Delivery) CheckLease() error {
	if d.Claim != nil && !d.Claim.Leased() {
		return fmt.Errorf("%w: row %d", ErrClaimLost, d.Claim.ID)
	}
	return nil
}

// WithDelivery returns ctx with d. ctx is the context of the message before any
// middleware.
func WithDelivery(ctx context.Context, d *Delivery) context.Context {
	d.arrived = ctx
	return context.WithValue(ctx, deliveryKey, d)
}

// DeliveryOf returns the delivery of the message of ctx. Without retry's Subscriber
// it is made from the router's context: the consumer is the name of the handler.
func DeliveryOf(ctx context.Context) *Delivery {
	if d, ok := ctx.Value(deliveryKey).(*Delivery); ok {
		return d
	}
	return &Delivery{Consumer: message.HandlerNameFromCtx(ctx), Topic: message.SubscribeTopicFromCtx(ctx)}
}

// ShuttingDown reports whether a failure under ctx may come from the end of the
// subscription and not from the handler. An exceeded deadline is a failure of the
// handler, and so is the end of a context that a middleware has made, such as
// Watermill's Timeout.
func (d *Delivery) ShuttingDown(ctx context.Context) bool {
	select {
	case <-d.Closing:
		return true
	default:
		return d.base(ctx).Err() == context.Canceled
	}
}

// base returns the context that ends with the subscription, in place of ctx, the
// message's context inside of a middleware.
func (d *Delivery) base(ctx context.Context) context.Context {
	if d.arrived != nil {
		return d.arrived
	}
	return ctx
}

// Subscription describes a subscription to a transport that delivers through this
// table.
type Subscription struct {
	Consumer string

	// KeyOrder reports whether the consumer keeps the order of ordering keys.
	KeyOrder bool

	// Owner names the subscription, for people who look at the table.
	Owner string

	// Wake makes the consumer look for new rows at once.
	Wake func()

	// Store is called during the Subscribe call by a transport all of whose
	// messages come through this table.
	Store func(Stored)
}

// Stored configures a subscription whose transport stores every message before it
// is handled.
type Stored struct {
	// Ahead is the number of rows to claim beyond those that are being handled.
	Ahead int

	// Keep keeps the rows of handled messages.
	Keep bool

	// Handled is called with the time that a handled message has been in the
	// table. Several goroutines call it.
	Handled func(lag time.Duration)
}

// WithSubscription returns ctx with s, for the Subscribe call of a transport.
func WithSubscription(ctx context.Context, s Subscription) context.Context {
	return context.WithValue(ctx, subscriptionKey, s)
}

// SubscriptionOf returns the subscription of ctx.
func SubscriptionOf(ctx context.Context) (Subscription, bool) {
	s, ok := ctx.Value(subscriptionKey).(Subscription)
	return s, ok
}
