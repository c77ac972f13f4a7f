package rabbit

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// link is one connection, with what it runs on.
type link struct {
	conn   *amqp.Connection
	mux    *mux
	closed chan *amqp.Error

	timeout time.Duration // for a request
}

// request calls f, which waits for answers of the broker.
func (l *link) request(ctx context.Context, f func() error) error {
	return l.within(ctx, l.timeout, f)
}

// within calls f and closes the socket if it takes too long: amqp091 has no
// deadline for requests.
func (l *link) within(ctx context.Context, limit time.Duration, f func() error) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	stop := context.AfterFunc(ctx, func() { l.mux.abort(fmt.Errorf("no answer from the broker within %v", limit)) })
	defer stop()
	return f()
}

// patiently calls f, which a stuck queue can hold up for as long as it is stuck.
// That is no reason to take the connection from the other queues: whether the
// broker is alive is what heartbeats are for. f ends with the connection at the
// latest.
func (l *link) patiently(f func() error) error {
	if l.conn.Config.Heartbeat == 0 {
		return l.request(context.Background(), f)
	}
	return f()
}

// lost says why the connection was lost, as well as that is known.
func (l *link) lost(err error) error {
	return redact(cmp.Or(l.mux.failure(), err))
}

// reason says why the connection is closed, from what came out of closed.
func (l *link) reason(reason *amqp.Error, ok bool) error {
	if !ok {
		return errConnectionClosed
	}
	return l.lost(reason)
}

// end closes the connection, politely if there is a chance of an answer, and
// returns when the socket is closed.
func (l *link) end(polite bool) {
	if polite {
		_ = l.within(context.Background(), lastWrite, l.conn.Close)
	}
	if !l.conn.IsClosed() {
		l.mux.abort(net.ErrClosed)
	}
	defer time.AfterFunc(lastWrite, func() { l.mux.abort(net.ErrClosed) }).Stop()
	<-l.mux.done
}
