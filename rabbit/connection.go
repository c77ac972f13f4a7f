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

// connection is an AMQP connection to the broker, together with the network connection
// that it uses.
type connection struct {
	amqp   *amqp091.Connection
	wire   *amqpwire.Conn
	closed chan *amqp091.Error

	timeout time.Duration // time limit of a request
}

// closeWait is the time limit of each of two waits when a connection ends. The first is
// the wait for the broker's reply to a close, and the second is the wait until the
// socket is closed. If a wait takes longer, the socket is closed immediately.
const closeWait = time.Second

// request calls f, which waits for replies of the broker. If f takes longer than
// c.timeout, request closes the socket.
func (c *connection) request(ctx context.Context, f func() error) error {
	return c.requestWithin(ctx, c.timeout, f)
}

// requestWithin calls f. If f takes longer than limit, or if ctx ends, requestWithin
// closes the socket, so that f returns with an error. This is needed because amqp091
// has no deadline for requests.
func (c *connection) requestWithin(ctx context.Context, limit time.Duration, f func() error) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	stop := context.AfterFunc(ctx, func() { c.wire.Abort(fmt.Errorf("the broker did not reply within %v", limit)) })
	defer stop()
	return f()
}

// queueRequest calls f, which waits for the reply of a queue. If the queue is stuck, f
// does not return until the queue works again. There is no deadline, because a stuck
// queue must not make the other queues lose their connection. Heartbeats detect a
// broker that does not respond, so f returns at the latest when the connection is
// closed. Without heartbeats, the deadline of request applies.
func (c *connection) queueRequest(f func() error) error {
	if c.amqp.Config.Heartbeat == 0 {
		return c.request(context.Background(), f)
	}
	return f()
}

// lossReason returns the most precise known reason for the loss of the connection. The
// parameter err is the reason that amqp091 reports.
func (c *connection) lossReason(err error) error {
	return redact(cmp.Or(c.wire.Failure(), err))
}

// closeReason returns why the connection was closed. The arguments reason and ok must
// be the values received from c.closed.
func (c *connection) closeReason(reason *amqp091.Error, ok bool) error {
	if !ok {
		return errConnectionClosed
	}
	return c.lossReason(reason)
}

// end closes the connection, and returns when the socket is closed. If graceful is true,
// end first asks the broker to close the connection.
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
