package kit

import (
	"context"
	"net"
	"sync/atomic"
	"time"
)

// DialFunc opens connections for a driver. It is a pq.Dialer, and its DialContext is a DialFunc of pgx.
type DialFunc func(ctx context.Context, network, address string) (net.Conn, error)

// Dialer returns a function that opens a connection, passes it to wrap, and gives the driver the
// connection that wrap returns.
func Dialer(wrap func(conn net.Conn) net.Conn) DialFunc {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := new(net.Dialer).DialContext(ctx, network, address)
		if err != nil {
			return nil, err
		}
		return wrap(conn), nil
	}
}

// DialContext opens a connection.
func (d DialFunc) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	return d(ctx, network, address)
}

// Dial opens a connection.
func (d DialFunc) Dial(network, address string) (net.Conn, error) {
	return d(context.Background(), network, address)
}

// DialTimeout opens a connection within the timeout.
func (d DialFunc) DialTimeout(network, address string, timeout time.Duration) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	return d(ctx, network, address)
}

// RoundTrips counts the writes of the connections that are passed to its Dial. lib/pq and pgx write
// once for each round trip.
type RoundTrips struct{ atomic.Int64 }

// Dial wraps a connection for [Dialer].
func (r *RoundTrips) Dial(conn net.Conn) net.Conn { return countedConn{conn, r} }

type countedConn struct {
	net.Conn

	trips *RoundTrips
}

func (c countedConn) Write(b []byte) (int, error) {
	c.trips.Add(1)
	return c.Conn.Write(b)
}
