package parkedrows

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

	// Mark copies metadata from the message that is being handled to a message that the
	// handler produces. It is nil if several messages are handled together.
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

// Mark copies metadata from the message that is being handled in ctx to msg, if there is one.
func Mark(ctx context.Context, msg *message.Message) {
	if c, ok := ctx.Value(txKey).(*TxContext); ok && c.Mark != nil {
		c.Mark(msg)
	}
}

// AfterCommit makes f run after the commit of the transaction in ctx. It returns an
// error if ctx has no transaction, or if the handler has returned.
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

// End returns the functions that AfterCommit has collected. Call End when the handler
// has returned, and call the functions after the commit. After End, AfterCommit returns
// an error.
func (c *TxContext) End() []func() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ended = true
	return c.after
}

// ErrInsideDedup means that the middleware poison or retry is inside of dedup. This
// order is wrong: dedup would commit the writes of a failed handler and remember the
// message as handled, so no retry or replay would run it again.
var ErrInsideDedup = errors.New(
	"the middleware is inside of dedup's: from the outside in the order is poison, retry, dedup")

type tried struct {
	msg          *message.Message
	failedBefore bool
}

// WithTried returns a copy of ctx that says that retry has passed msg on. The middlewares inside of
// retry read this with [Tried] and [FailedBefore]; poison uses Tried to find out whether it is
// inside of retry, which would be the wrong order. failedBefore says whether an earlier call of the
// handler failed.
func WithTried(ctx context.Context, msg *message.Message, failedBefore bool) context.Context {
	return context.WithValue(ctx, triedKey, tried{msg, failedBefore})
}

// Tried reports whether retry has passed msg with this ctx, so that the calling middleware is
// inside of retry. It returns false if a handler passes on its ctx with a new message.
func Tried(ctx context.Context, msg *message.Message) bool {
	t, ok := ctx.Value(triedKey).(tried)
	return ok && t.msg == msg
}

// FailedBefore reports whether an earlier call of the handler failed for the message of
// ctx, or whether a process died during such a call.
func FailedBefore(ctx context.Context) bool {
	if t, ok := ctx.Value(triedKey).(tried); ok && t.failedBefore {
		return true
	}
	claim := DeliveryOf(ctx).Claim
	return claim != nil && (claim.Attempts > 0 || claim.Crashes > 1)
}

// Delivery describes how a message reached its handler.
type Delivery struct {
	Consumer string

	Topic string

	// Subscribed reports whether retry's Subscriber delivered the message. No other one delivers
	// parked messages.
	Subscribed bool

	Use *Use

	// Claim is nil if the message comes directly from the transport.
	Claim *Claim

	// Closing is a channel that is closed when the consumer shuts down.
	Closing <-chan struct{}

	// Wake makes the consumer look for new rows immediately. It may be nil.
	Wake func()

	// Pauses is nil if retry's Subscriber is not used.
	Pauses *PauseWatch

	// AwaitCall waits until the limit of the consumer lets the handler be called again. It returns
	// false if the consumer shuts down. It is nil if retry's Subscriber is not used.
	AwaitCall func() bool

	// arrived is the context of the message as the subscriber delivered it. A middleware
	// may pass on a different context, for example one with a deadline.
	arrived context.Context

	madeDue atomic.Bool
}

// MakesDue records that the message's transaction makes another row due, so that
// [Delivery.Committed] wakes the consumer.
func (d *Delivery) MakesDue() { d.madeDue.Store(true) }

// Committed must be called after the commit of the message's transaction. If the
// transaction has made rows due, Committed makes the consumer look for them.
func (d *Delivery) Committed() {
	if d.Wake != nil && d.madeDue.Load() {
		d.Wake()
	}
}

// MayCall waits until the handler may be called again. It returns false if the consumer shuts down.
func (d *Delivery) MayCall() bool { return d.AwaitCall == nil || d.AwaitCall() }

// CheckLease returns [ErrClaimLost] if the message comes from a row, and the lease of
// the row may have ended. After this error, do not begin any work for the message.
func (d *Delivery) CheckLease() error {
	if d.Claim != nil && !d.Claim.Leased() {
		return fmt.Errorf("%w: row %d", ErrClaimLost, d.Claim.ID)
	}
	return nil
}

// WithDelivery returns ctx with d. ctx must be the context of the message
// before any middleware has changed it.
func WithDelivery(ctx context.Context, d *Delivery) context.Context {
	d.arrived = ctx
	return context.WithValue(ctx, deliveryKey, d)
}

// DeliveryOf returns the delivery of the message of ctx. If retry's Subscriber is not
// used, it creates a delivery from the router's context, with the name of the handler
// as the consumer.
func DeliveryOf(ctx context.Context) *Delivery {
	if d, ok := ctx.Value(deliveryKey).(*Delivery); ok {
		return d
	}
	return &Delivery{Consumer: message.HandlerNameFromCtx(ctx), Topic: message.SubscribeTopicFromCtx(ctx)}
}

// ShuttingDown reports whether a call with ctx may have failed because the subscription
// has ended. It returns false if a deadline was exceeded, or if a middleware such as
// Watermill's Timeout has ended its own context: these are failures of the handler.
func (d *Delivery) ShuttingDown(ctx context.Context) bool {
	select {
	case <-d.Closing:
		return true
	default:
		return d.base(ctx).Err() == context.Canceled
	}
}

// base returns the context of the delivery, which ends with the subscription. A middleware's own
// ctx may end earlier, for example if an outer middleware has set a deadline.
func (d *Delivery) base(ctx context.Context) context.Context {
	if d.arrived != nil {
		return d.arrived
	}
	return ctx
}

// Subscription describes a subscription to a transport that uses the table once_parked.
type Subscription struct {
	Consumer string

	// KeyOrder reports whether the consumer keeps the order of messages with the same ordering key.
	KeyOrder bool

	// Owner is for people who look at the table.
	Owner string

	// Limit is the limit in the configuration of the consumer.
	Limit Limit

	Wake func()

	// Store must be called in Subscribe by a transport whose messages all come from the table
	// once_parked.
	Store func(Stored)
}

// Stored configures a subscription whose transport stores each message before the
// message is handled.
type Stored struct {
	// Ahead is how many rows to claim in addition to the rows that are being handled.
	Ahead int

	Keep bool

	// PerTenant is how many messages of one tenant may be claimed at the same time, in all
	// instances. 0 means no limit.
	PerTenant int

	// Handled is called after a message was handled. lag is the time from
	// storing the message until then. Several goroutines may call Handled at the same time.
	Handled func(lag time.Duration)
}

// WithSubscription returns ctx with s. Pass the result to the Subscribe method of a
// transport.
func WithSubscription(ctx context.Context, s Subscription) context.Context {
	return context.WithValue(ctx, subscriptionKey, s)
}

// SubscriptionOf returns the subscription of ctx.
func SubscriptionOf(ctx context.Context) (Subscription, bool) {
	s, ok := ctx.Value(subscriptionKey).(Subscription)
	return s, ok
}
