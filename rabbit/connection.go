package rabbit

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/watermill-once/once/internal/amqpwire"
)

// connection is a connection to the broker, together with the network connection
// beneath it.
type connection struct {
	amqp   *amqp091.Connection
	wire   *amqpwire.Conn
	closed chan *amqp091.Error

	timeout time.Duration // limit for a request
}

// closeWait is how long end waits for the broker's reply to a close, and then for the
// socket.
const closeWait = time.Second

// request calls f, which waits for replies of the broker. It closes the socket if this
// takes longer than c.timeout.
func (c *connection) request(ctx context.Context, f func() error) error {
	return c.requestWithin(ctx, c.timeout, f)
}

// requestWithin calls f, and closes the socket if f takes longer than limit, because
// amqp091 has no deadline for requests.
func (c *connection) requestWithin(ctx context.Context, limit time.Duration, f func() error) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	stop := context.AfterFunc(ctx, func() { c.wire.Abort(fmt.Errorf("the broker did not reply within %v", limit)) })
	defer stop()
	return f()
}

// queueRequest calls f, which waits for a queue. If the queue is stuck, f does not
// return until the queue works again. There is no deadline, because a stuck queue must
// not make the other queues lose their connection. Heartbeats detect a broker that does
// not respond, and f returns at the latest when the connection is closed. Without
// heartbeats, the deadline of request applies.
func (c *connection) queueRequest(f func() error) error {
	if c.amqp.Config.Heartbeat == 0 {
		return c.request(context.Background(), f)
	}
	return f()
}

// lossReason returns the most precise reason for which the connection was lost. err is
// the reason that amqp091 gives.
func (c *connection) lossReason(err error) error {
	return redact(cmp.Or(c.wire.Failure(), err))
}

// closeReason returns the reason for which the connection is closed. Its arguments were
// received from c.closed.
func (c *connection) closeReason(reason *amqp091.Error, ok bool) error {
	if !ok {
		return errConnectionClosed
	}
	return c.lossReason(reason)
}

// end closes the connection, and returns when the socket is closed. If graceful is
// true, it first asks the broker to close the connection.
func (c *connection) end(graceful bool) {
	if graceful {
		_ = c.requestWithin(context.Background(), closeWait, c.amqp.Close)
	}
	if !c.amqp.IsClosed() {
		c.wire.Abort(net.ErrClosed)
	}
	defer time.AfterFunc(closeWait, func() { c.wire.Abort(net.ErrClosed) }).Stop()
	<-c.wire.Done()
}
