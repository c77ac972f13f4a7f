package usercode

import (
	"context"
	"time"
)

// Patience is how long the start of a service waits for an unreachable database or
// broker. After this time, the service starts without it.
const Patience = 5 * time.Second

// Pinger is a transport that can check its connection to the broker.
type Pinger interface {
	// Ping returns nil if the broker accepts the connection. Use dialect.MayPass to distinguish an
	// unreachable broker from a broker that refuses the connection.
	Ping(ctx context.Context) error
}

// Named is a subscriber that knows the name of its consumer, such as the Subscriber of
// package retry.
type Named interface {
	ConsumerName() string
}

// Sharer is a [Named] subscriber whose consumer name may be shared by several handlers.
type Sharer interface {
	SharesConsumer() bool
}

// Limited is a subscriber that limits how many messages are handled at the same time.
// If the result automatic is true, the subscriber increases the limit for a handler
// with batches, see [WithInFlight].
type Limited interface {
	InFlight() (limit int, automatic bool)
}

// Ping pings transport if transport is a [Pinger]. Otherwise it returns nil.
func Ping(ctx context.Context, transport any) error {
	if p, ok := transport.(Pinger); ok {
		return p.Ping(ctx)
	}
	return nil
}

type inFlightKey struct{}

// WithInFlight returns a copy of ctx for the Subscribe call of a handler with batches.
// messages is the number of messages that must be in flight so that the batches are
// full.
func WithInFlight(ctx context.Context, messages int) context.Context {
	return context.WithValue(ctx, inFlightKey{}, messages)
}

// InFlight returns how many messages the handler of ctx needs in flight so that its
// batches are full. It returns 0 if the handler has no batches.
func InFlight(ctx context.Context) int {
	messages, _ := ctx.Value(inFlightKey{}).(int)
	return messages
}

type undecodableKey struct{}

// WithUndecodable returns a copy of ctx for a message that its transport could not decode.
// Its handler is not called.
func WithUndecodable(ctx context.Context, why error) context.Context {
	return context.WithValue(ctx, undecodableKey{}, why)
}

// Undecodable returns the error of a message that its transport could not decode, or nil.
func Undecodable(ctx context.Context) error {
	why, _ := ctx.Value(undecodableKey{}).(error)
	return why
}
