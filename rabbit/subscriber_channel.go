package rabbit

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/google/uuid"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/watermill-once/once/internal/failpoint"
)

var (
	errCancelled = errors.New("the broker has cancelled the consumer; the queue was deleted or has moved")
	errNoReply   = errors.New("the broker has not replied yet; the queue may be stuck")
)

// consumeChannel is an AMQP channel with one consumer. A delivery must be acked on the
// channel that delivered it. If a client acks it on another channel, the broker closes
// this other channel.
type consumeChannel struct {
	sub        *subscription
	conn       *connection
	amqp       *amqp.Channel
	tag        string
	deliveries <-chan amqp.Delivery
	cancelled  chan string
	requesting sync.Mutex // a channel allows only one request at a time

	ctx  context.Context // ends when the channel can ack no more messages
	lose context.CancelCauseFunc

	unacked  []uint64    // delivery tags without an ack or nack, in ascending order
	buffered []*delivery // decoded deliveries that no handler has received yet
	inFlight int         // number of unsettled deliveries that a handler has received
	lostBy   int         // why the channel delivers no more messages, as an index of series; endReason sets it
}

// opening is a consumeChannel that is being opened. The field err is set before the
// channel done is closed.
type opening struct {
	*consumeChannel

	done chan struct{}
	err  error
}

// openChannel opens a channel, and begins to consume. If this takes longer than the
// connection's timeout, openChannel returns errNoReply, and the channel is opened in
// the background. Then either the next call of openChannel waits for this channel, or
// discardOpening closes it.
func (sub *subscription) openChannel(c *connection) (*consumeChannel, error) {
	if sub.opening == nil {
		sub.opening = sub.newOpening(c)
	}
	limit := time.NewTimer(c.timeout)
	defer limit.Stop()
	select {
	case <-sub.opening.done:
	case <-limit.C:
		return nil, errNoReply
	case <-sub.ctx.Done():
		return nil, sub.ctx.Err()
	}
	ch, err := sub.opening.consumeChannel, sub.opening.err
	sub.opening = nil
	if err != nil {
		ch.lose(err)
		sub.running.Go(ch.close)
		return nil, err
	}
	return ch, nil
}

func (sub *subscription) newOpening(c *connection) *opening {
	ch := &consumeChannel{sub: sub, conn: c, tag: sub.s.config.Consume.Consumer}
	if ch.tag == "" {
		ch.tag = "once-" + uuid.NewString()
	}
	ch.ctx, ch.lose = context.WithCancelCause(sub.values)
	o := &opening{consumeChannel: ch, done: make(chan struct{})}
	sub.running.Go(func() {
		defer close(o.done)
		o.err = c.queueRequest(ch.begin)
	})
	return o
}

// discardOpening closes the channel that is being opened, as soon as it is open. If no
// channel is being opened, it does nothing.
func (sub *subscription) discardOpening() {
	if o := sub.opening; o != nil {
		sub.running.Go(func() {
			<-o.done
			o.lose(errCloseTimeout)
			o.close()
		})
	}
}

// begin opens the channel, declares the topology, and begins to consume. If it returns
// an error, the caller must close the channel.
func (ch *consumeChannel) begin() error {
	channel, err := ch.conn.amqp.Channel()
	if err != nil {
		return err
	}
	ch.amqp = channel
	closed := channel.NotifyClose(make(chan *amqp.Error, 1))
	ch.sub.running.Go(func() {
		reason, ok := <-closed
		ch.lose(ch.conn.closeReason(reason, ok))
	})
	ch.cancelled = channel.NotifyCancel(make(chan string, 1))

	if err := ch.sub.declare(ch.conn, channel); err != nil {
		return err
	}
	consume := ch.sub.s.config.Consume
	if err := channel.Qos(ch.sub.cfg.prefetch(consume.Qos.PrefetchCount), 0, false); err != nil {
		return err
	}
	if err := ch.sub.endReason(); err != nil {
		return err // a message that is delivered to an ended subscription would be redelivered, and each delivery counts
	}
	ch.deliveries, err = channel.Consume(
		ch.sub.queue, ch.tag, false, consume.Exclusive, consume.NoLocal, consume.NoWait, consume.Arguments)
	return err
}

// endReason returns why the channel delivers no more messages. If the broker has
// cancelled the consumer, amqp091 sends to ch.cancelled before it closes ch.deliveries.
// Otherwise amqp091 only closes ch.cancelled.
func (ch *consumeChannel) endReason() error {
	select {
	case _, ok := <-ch.cancelled:
		if ok {
			ch.lostBy = lostConsumer
			return errCancelled
		}
	default:
	}
	<-ch.ctx.Done()
	ch.lostBy = lostChannel
	if ch.conn.amqp.IsClosed() {
		ch.lostBy = lostConnection
	}
	return context.Cause(ch.ctx)
}

// giveBackBuffered returns the messages that no handler has received to the queue.
func (ch *consumeChannel) giveBackBuffered() {
	for _, d := range ch.buffered {
		if ch.ctx.Err() == nil {
			failpoint.Hit("rabbit/give-back")
			_ = d.raw.Nack(false, true)
		}
		d.cancel()
	}
	ch.buffered = nil
}

// stop cancels the consumer. amqp091 closes ch.deliveries when the broker has replied.
func (ch *consumeChannel) stop() {
	ch.request(func() error { return ch.amqp.Cancel(ch.tag, false) })
}

// close closes the AMQP channel. The broker then requeues all unacked messages of the
// channel.
func (ch *consumeChannel) close() {
	if ch.amqp != nil {
		ch.request(ch.amqp.Close)
	}
}

// request calls f. Only one call of request runs f at a time. It ignores the error of
// f: after an error the broker has closed the channel, and the subscription opens
// another one.
func (ch *consumeChannel) request(f func() error) {
	ch.requesting.Lock()
	defer ch.requesting.Unlock()
	_ = ch.conn.queueRequest(f)
}
