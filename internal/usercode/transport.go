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
	// Ping returns nil if the broker accepts the connection. dialect.MayPass distinguishes an
	// unreachable one from one that refuses it.
	Ping(ctx context.Context) error
}

// Named knows the name of its consumer, such as the Subscriber of package retry.
type Named interface {
	ConsumerName() string
}

// Sharer is a [Named] whose name several handlers may share.
type Sharer interface {
	SharesConsumer() bool
}

// Limited limits how many messages are handled at the same time. If automatic is true, it increases
// the limit for a handler with batches, see [WithInFlight].
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

// WithInFlight returns a context for the Subscribe call of a handler with batches, which are full
// with this number of messages in flight.
func WithInFlight(ctx context.Context, messages int) context.Context {
	return context.WithValue(ctx, inFlightKey{}, messages)
}

// InFlight returns how many messages the handler of ctx needs in flight so that its batches are
// full, or 0 without batches.
func InFlight(ctx context.Context) int {
	messages, _ := ctx.Value(inFlightKey{}).(int)
	return messages
}

type undecodableKey struct{}

// WithUndecodable marks a message that its transport could not decode. Its handler is not called.
func WithUndecodable(ctx context.Context, why error) context.Context {
	return context.WithValue(ctx, undecodableKey{}, why)
}

// Undecodable returns the error of a message that its transport could not decode, or nil.
func Undecodable(ctx context.Context) error {
	why, _ := ctx.Value(undecodableKey{}).(error)
	return why
}
