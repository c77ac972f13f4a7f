package rabbit

import (
	"context"
	"errors"
	"math"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/rabbitmq/amqp091-go"

	"github.com/watermill-once/once/internal/failpoint"
)

var errNoReply = errors.New("the broker has not replied yet; the queue may be stuck")

// consumeChannel is an AMQP channel with one consumer. A delivery must be acked on its channel: the
// broker closes any other one.
type consumeChannel struct {
	sub        *subscription
	conn       *connection
	amqp       *amqp091.Channel
	tag        string
	deliveries <-chan amqp091.Delivery
	disconnect func()        // ends the use of conn
	cancelled  chan struct{} // closed when the broker has cancelled the consumer
	judged     chan struct{} // closed when the reason of the cancel is known; if it is the consumer timeout, ctx has ended
	requesting sync.Mutex    // a channel allows only one request at a time

	ctx  context.Context // ends when the channel can ack no more messages
	lose context.CancelCauseFunc

	unacked  []uint64    // delivery tags without an ack or nack, in ascending order
	buffered []*delivery // decoded deliveries that no handler has received yet
	inFlight int         // number of unsettled deliveries that a handler has received
	lostBy   int         // why the channel delivers no more messages, as an index of series; endReason sets it

	activity int64       // conn.activity at the last call of checkQuietNode
	checking atomic.Bool // whether a check runs, or the broker has refused one
}

// err is set before done is closed.
type opening struct {
	*consumeChannel

	done chan struct{}
	err  error
}

// openChannel opens a channel, and begins to consume. If this takes longer than the connection's
// timeout, it returns errNoReply. The next call waits for the same channel, or discardOpening
// closes it.
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
	ch := &consumeChannel{
		sub: sub, tag: sub.s.config.Consume.Consumer, cancelled: make(chan struct{}), judged: make(chan struct{}),
	}
	if ch.tag == "" {
		ch.tag = "once-" + uuid.NewString()
	}
	ch.ctx, ch.lose = context.WithCancelCause(sub.values)
	o := &opening{consumeChannel: ch, done: make(chan struct{})}
	sub.running.Go(func() {
		defer close(o.done)
		o.err = ch.open(c)
	})
	return o
}

func (ch *consumeChannel) open(shared *connection) (err error) {
	s, topic := ch.sub.s, ch.sub.topic
	if ch.conn, ch.disconnect, err = s.connectionFor(ch.sub.ctx, topic, shared); err != nil {
		return err
	}
	err = ch.conn.longRequest(ch.begin)
	if err != nil && ch.amqp != nil && ch.conn.amqp.IsClosed() {
		<-ch.ctx.Done()
		if reason := context.Cause(ch.ctx); closesConnection(reason) {
			err = reason // a TopologyBuilder may have hidden it
		}
	}
	return s.recordSetUp(topic, err)
}

// discardOpening closes a channel that is being opened, as soon as it is open.
func (sub *subscription) discardOpening() {
	if o := sub.opening; o != nil {
		sub.running.Go(func() {
			<-o.done
			o.lose(errCloseTimeout)
			o.close()
		})
	}
}

// After an error of begin, the caller must close the channel.
func (ch *consumeChannel) begin() error {
	if err := ch.sub.declare(ch.conn); err != nil {
		return err
	}
	channel, err := ch.conn.amqp.Channel()
	if err != nil {
		return err
	}
	ch.amqp = channel
	closed, cancels := channel.NotifyClose(make(chan *amqp091.Error, 1)), channel.NotifyCancel(make(chan string))
	ch.sub.running.Go(func() { ch.watch(closed, cancels) })

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

func (ch *consumeChannel) giveBackBuffered() {
	lost := ch.isLost()
	for _, d := range ch.buffered {
		if !lost {
			failpoint.Hit("rabbit/give-back")
			_ = d.raw.Nack(false, true)
		}
		d.cancel()
	}
	ch.buffered = nil
}

// amqp091 closes ch.deliveries when the broker has replied.
func (ch *consumeChannel) stop() {
	ch.request(func() error { return ch.amqp.Cancel(ch.tag, false) })
}

// The broker requeues what is unacked. A connection without another user is closed, too.
func (ch *consumeChannel) close() {
	if ch.amqp != nil {
		ch.request(ch.amqp.Close)
	}
	if ch.disconnect != nil {
		ch.disconnect()
	}
}

// Only one request runs at a time. Its error is ignored: the broker has closed the channel, and the
// subscription opens another.
func (ch *consumeChannel) request(f func() error) {
	ch.requesting.Lock()
	defer ch.requesting.Unlock()
	_ = ch.conn.longRequest(f)
}

var (
	errQueueDeleted = errors.New("the broker has cancelled the consumer; its queue was deleted")
	errTimedOut     = errors.New("the broker has cancelled the consumer, but its queue exists; probably a message was unacked " +
		"for longer than the consumer timeout: make the handler faster, or raise the timeout")
)

// watch reads every cancel, because amqp091 stops reading from the connection until somebody does.
// RabbitMQ 4.3 can cancel a consumer many times, once for each group of messages that have timed
// out.
func (ch *consumeChannel) watch(closed <-chan *amqp091.Error, cancels <-chan string) {
	judge := sync.OnceFunc(func() {
		close(ch.cancelled)
		ch.sub.running.Go(ch.judge)
	})
	for {
		select {
		case reason, ok := <-closed:
			ch.lose(ch.conn.closeReason(reason, ok))
			return
		case _, ok := <-cancels:
			if !ok {
				cancels = nil // the reason arrives on closed
				continue
			}
			judge()
		}
	}
}

// judge finds out why the broker has cancelled the consumer. If the queue was deleted, the handlers
// continue, because there is no other copy of their messages. Otherwise the consumer timeout has
// passed, and the broker delivers some messages again, so all of the channel count as lost.
func (ch *consumeChannel) judge() {
	defer close(ch.judged)
	if !ch.queueIsDeleted() {
		ch.lose(errTimedOut)
	}
}

// queueIsDeleted returns false if this is unknown.
func (ch *consumeChannel) queueIsDeleted() bool {
	asked := make(chan error, 1)
	ch.sub.running.Go(func() {
		asked <- ch.conn.longRequest(func() error {
			return onChannel(ch.conn.amqp, func(channel *amqp091.Channel) error {
				_, err := channel.QueueDeclarePassive(ch.sub.queue, true, false, false, false, nil)
				return err
			})
		})
	})
	limit := time.NewTimer(ch.conn.timeout)
	defer limit.Stop()
	select {
	case err := <-asked:
		return isDeleted(err)
	case <-limit.C:
	case <-ch.ctx.Done():
	}
	return false
}

// The broker sends the same code, with another text, for a queue on a node that does not run.
func isDeleted(err error) bool {
	refused, ok := errors.AsType[*amqp091.Error](err)
	return ok && refused.Server && refused.Code == amqp091.NotFound && strings.HasPrefix(refused.Reason, "NOT_FOUND - no queue")
}

// isLost reports whether the channel can send no more acks. After a cancel it waits for the reason:
// an ack of a message that has timed out would make the broker deliver to the cancelled consumer
// again.
func (ch *consumeChannel) isLost() bool {
	select {
	case <-ch.cancelled:
		<-ch.judged
	default:
	}
	return ch.ctx.Err() != nil
}

// endReason waits until it is known why the channel delivers no more messages.
func (ch *consumeChannel) endReason() error {
	select {
	case <-ch.cancelled:
	case <-ch.ctx.Done():
	}
	ch.lostBy = lostConsumer
	if !ch.isLost() {
		return errQueueDeleted
	}
	reason := context.Cause(ch.ctx)
	switch {
	case errors.Is(reason, errTimedOut):
	case ch.conn.amqp.IsClosed():
		ch.lostBy = lostConnection
	default:
		ch.lostBy = lostChannel
	}
	return reason
}

// checkQuietNode checks whether the node can still serve the queue, if the connection has delivered
// nothing and checked nothing since the last call. A node that is separated from the cluster keeps
// the connection open, and looks to a consumer like an empty queue.
//
// After a check, the next call finds activity, so the subscriptions of a connection take turns.
// There is no check while messages are in flight, because a failed check loses the connection.
func (ch *consumeChannel) checkQuietNode() {
	s, activity, before := ch.sub.s, &ch.conn.activity, ch.activity
	ch.activity = activity.Load()
	switch {
	case len(ch.unacked) > 0 || s.inFlight.Load() > 0 || ch.checking.Load():
	case s.config.Consume.Exclusive || s.refusesChecks.Load():
	case activity.CompareAndSwap(before, before+1):
		ch.checking.Store(true)
		ch.sub.running.Go(func() { ch.check(before + 1) })
	}
}

// check adds a second consumer to the queue, and removes it. A quorum queue does neither without
// most of its members, and RabbitMQ refuses it only after a minute (net_ticktime and 5 s). If there
// is no reply within the connection's timeout, and the connection is still as quiet as activity
// says, check closes it, and the Subscriber tries another node. A passive declaration would not do:
// the old leader of a queue answers it from memory.
func (ch *consumeChannel) check(activity int64) {
	c, s := ch.conn, ch.sub.s
	defer time.AfterFunc(c.timeout, func() {
		if c.activity.Load() == activity && s.inFlight.Load() == 0 {
			c.wire.Abort(errNoReply)
		}
	}).Stop()
	err := c.longRequest(func() error {
		return onChannel(c.amqp, func(channel *amqp091.Channel) error {
			if err := channel.Qos(1, 0, false); err != nil {
				return err
			}
			_, err := channel.Consume(ch.sub.queue, "", false, false, false, false, amqp091.Table{"x-priority": int32(lowestPriority)})
			return err
		})
	})
	refused, ok := errors.AsType[*amqp091.Error](err)
	switch {
	case err == nil:
		ch.checking.Store(false)
	case ok && closesConnection(err) && refused.Code != amqp091.InternalError:
		s.refusesChecks.Store(true) // for example, the user may not open another channel
	}
}

// lowestPriority makes the broker give messages to all other consumers first.
const lowestPriority = math.MinInt32
