// Package transport is what a service knows of its publishers and subscribers: whether
// their servers can be reached, how many messages a handler needs in flight, and whether a
// message could be decoded.
package transport

import (
	"context"
	"database/sql/driver"
	"errors"
	"io"
	"net"
	"time"

	"github.com/watermill-once/once/internal/dialect"
)

// Patience is how long the start of a service waits for an unreachable database or
// broker. After this time, the service starts without it.
const Patience = 5 * time.Second

// Pinger is a transport that can check its connection to the broker.
type Pinger interface {
	// Ping returns nil if the broker accepts the connection. Use MayPass to distinguish an
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

type (
	refuser      interface{ Refused() bool }
	unavailabler interface{ Unavailable() bool }
)

// MayPass reports whether err means that a server is unreachable, or cannot work now,
// so that a later attempt may succeed. For a wrong password, an unknown database and
// all unknown errors, it returns false.
func MayPass(err error) bool {
	if err == nil {
		return false
	}
	var (
		refused     refuser
		unavailable unavailabler
		network     net.Error
	)
	if errors.As(err, &refused) && refused.Refused() {
		return false
	}
	if dialect.State(err) != "" { // an error with a SQLSTATE is an answer of the server
		return dialect.Unavailable(err) || dialect.Contended(err)
	}
	for _, passing := range []error{
		context.DeadlineExceeded, context.Canceled, driver.ErrBadConn, io.EOF, io.ErrUnexpectedEOF, net.ErrClosed,
	} {
		if errors.Is(err, passing) {
			return true
		}
	}
	return dialect.Contended(err) || // SQLite busy
		errors.As(err, &unavailable) && unavailable.Unavailable() || errors.As(err, &network)
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
