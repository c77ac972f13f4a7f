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

// connection is a connection to the broker and the network connection beneath
// it.
type connection struct {
	amqp   *amqp091.Connection
	wire   *amqpwire.Conn
	closed chan *amqp091.Error

	timeout time.Duration // for a request
}

// How long end waits for the broker's reply to a close, and then for the socket.
const closeWait = time.Second

// request calls f, which waits for replies of the broker.
func (c *connection) request(ctx context.Context, f func() error) error {
	return c.requestWithin(ctx, c.timeout, f)
}

// requestWithin calls f and closes the socket after limit: amqp091 has no
// deadline for requests.
func (c *connection) requestWithin(ctx context.Context, limit time.Duration, f func() error) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	stop := context.AfterFunc(ctx, func() { c.wire.Abort(fmt.Errorf("the broker did not reply within %v", limit)) })
	defer stop()
	return f()
}

// queueRequest calls f, which a stuck queue can delay for as long as it is
// stuck. It has no deadline, because a stuck queue must not cost the other
// queues their connection; heartbeats detect a broker that does not respond. f
// returns at the latest when the connection is closed. Without heartbeats, the
// deadline of request applies.
func (c *connection) queueRequest(f func() error) error {
	if c.amqp.Config.Heartbeat == 0 {
		return c.request(context.Background(), f)
	}
	return f()
}

// lossReason returns the most precise reason why the connection was lost. err is
// amqp091's reason.
func (c *connection) lossReason(err error) error {
	return redact(cmp.Or(c.wire.Failure(), err))
}

// closeReason returns why the connection is closed. Its arguments are received
// from c.closed.
func (c *connection) closeReason(reason *amqp091.Error, ok bool) error {
	if !ok {
		return errConnectionClosed
	}
	return c.lossReason(reason)
}

// end closes the connection and returns when the socket is closed. It sends a
// close to the broker if graceful is true.
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
