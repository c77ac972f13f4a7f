package kit

import (
	"context"
	"net"
	"sync/atomic"
	"time"
)

// Dialer opens connections for a driver, and passes each to the function, which returns the one that
// the driver uses. It is a pq.Dialer, and its DialContext is a DialFunc of pgx.
type Dialer func(conn net.Conn) net.Conn

// DialContext opens a connection.
func (d Dialer) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	conn, err := new(net.Dialer).DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	return d(conn), nil
}

// Dial opens a connection.
func (d Dialer) Dial(network, address string) (net.Conn, error) {
	return d.DialContext(context.Background(), network, address)
}

// DialTimeout opens a connection within the timeout.
func (d Dialer) DialTimeout(network, address string, timeout time.Duration) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	return d.DialContext(ctx, network, address)
}

// RoundTrips counts the writes of the connections that its Dial opens. lib/pq and pgx write once for
// each round trip.
type RoundTrips struct{ atomic.Int64 }

// Dial is a [Dialer].
func (r *RoundTrips) Dial(conn net.Conn) net.Conn { return countedConn{conn, r} }

type countedConn struct {
	net.Conn

	trips *RoundTrips
}

func (c countedConn) Write(b []byte) (int, error) {
	c.trips.Add(1)
	return c.Conn.Write(b)
}
