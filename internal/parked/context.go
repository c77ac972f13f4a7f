package parked

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
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

// WithTx returns ctx with the transaction of the message that is being handled.
func WithTx(ctx context.Context, tx *sql.Tx) context.Context {
	return context.WithValue(ctx, txKey, tx)
}

// TxOf returns the transaction of the message that is being handled.
func TxOf(ctx context.Context) (*sql.Tx, bool) {
	tx, ok := ctx.Value(txKey).(*sql.Tx)
	return tx, ok
}

// ErrInsideDedup says that a middleware which takes failures off the chain is
// inside of dedup. That would commit what a failed handler wrote, and count the
// message as done: no retry or replay would run it again.
var ErrInsideDedup = errors.New(
	"the middleware is inside of dedup's: from the outside in the order is poison, retry, dedup")

// tried is a message that retry gives to the middlewares inside of it.
type tried struct {
	msg     *message.Message
	suspect bool
}

// WithTried returns ctx for what retry gives msg to. suspect says that its
// handler was called before, without success.
func WithTried(ctx context.Context, msg *message.Message, suspect bool) context.Context {
	return context.WithValue(ctx, triedKey, tried{msg, suspect})
}

// Tried says that a middleware with msg is inside of retry. Another message can
// have the same context: a handler may have given it on.
func Tried(ctx context.Context, msg *message.Message) bool {
	t, ok := ctx.Value(triedKey).(tried)
	return ok && t.msg == msg
}

// Suspect says that the handler of the message of ctx was called before, without
// success, or that the process has ended under it.
func Suspect(ctx context.Context) bool {
	if t, ok := ctx.Value(triedKey).(tried); ok && t.suspect {
		return true
	}
	claim := DeliveryOf(ctx).Claim
	return claim != nil && (claim.Attempts > 0 || claim.Crashes > 1)
}

// Delivery says how a message came to its handler.
type Delivery struct {
	// Consumer is the stable name that the message is handled under.
	Consumer string

	// Topic is what was subscribed to.
	Topic string

	// Subscribed says that retry's Subscriber delivered it, so that what is
	// parked comes back.
	Subscribed bool

	// Use is the subscription; nil without retry's Subscriber.
	Use *Use

	// Claim is the parked row of the message; nil when it comes from the
	// transport.
	Claim *Claim

	// Closing is closed when the consumer is shutting down.
	Closing <-chan struct{}

	// Wake makes the consumer look for new rows at once, if not nil.
	Wake func()

	madeDue atomic.Bool
}

// MakesDue says that the transaction of the message makes a row due.
func (d *Delivery) MakesDue() { d.madeDue.Store(true) }

// Committed has what the transaction has made due looked for.
func (d *Delivery) Committed() {
	if d.Wake != nil && d.madeDue.Load() {
		d.Wake()
	}
}

// Held returns [ErrClaimLost] if the message comes from a row whose lease may
// have ended: then nothing is to be begun for it.
func (d *Delivery) Held() error {
	if d.Claim != nil && !d.Claim.Held() {
		return fmt.Errorf("%w: row %d", ErrClaimLost, d.Claim.ID)
	}
	return nil
}

// WithDelivery returns ctx with d.
func WithDelivery(ctx context.Context, d *Delivery) context.Context {
	return context.WithValue(ctx, deliveryKey, d)
}

// DeliveryOf returns how the message of ctx was delivered. Without our
// Subscriber that is what the router says: the handler's name is the consumer.
func DeliveryOf(ctx context.Context) *Delivery {
	if d, ok := ctx.Value(deliveryKey).(*Delivery); ok {
		return d
	}
	return &Delivery{Consumer: message.HandlerNameFromCtx(ctx), Topic: message.SubscribeTopicFromCtx(ctx)}
}

// ShuttingDown says whether a failure under ctx is to be put down to the end
// of the subscription rather than to the handler. A deadline is the handler's
// own affair.
func (d *Delivery) ShuttingDown(ctx context.Context) bool {
	select {
	case <-d.Closing:
		return true
	default:
		return ctx.Err() == context.Canceled
	}
}

// Subscription is what a transport that delivers through this table must know
// about who subscribes.
type Subscription struct {
	Consumer string

	// KeyOrder says that it handles messages of one ordering key in order.
	KeyOrder bool

	// Owner names the subscription, for people who look at the table.
	Owner string

	// Wake makes the consumer look for new rows at once.
	Wake func()

	// Store tells the consumer, during the Subscribe call, that all its
	// messages come through this table.
	Store func(Stored)
}

// Stored is what a transport wants that stores every message before it is
// handled.
type Stored struct {
	// Ahead is how many rows to claim beyond those that are being handled.
	Ahead int

	// Keep has rows stay when their messages were handled.
	Keep bool

	// Handled is told how long a message was in the table until it was handled.
	// It is called by several goroutines.
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
