package rabbit

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/watermill-once/once/internal/failpoint"
	"github.com/watermill-once/once/internal/gather"
)

// subscription is the state of one call of Subscribe. A single goroutine does all its
// work, including acks. In addition, one goroutine for each message in flight waits for
// the handler's ack or nack.
type subscription struct {
	s                      *Subscriber
	cfg                    SubscriberConfig
	topic, queue, exchange string

	ctx    context.Context // ends when the subscription ends
	cancel context.CancelFunc
	values context.Context // has the values of Subscribe's context, but never ends

	out     chan *message.Message
	handled chan *delivery // has room for all messages in flight
	stopped chan struct{}  // closed when the subscription stops reading from handled
	running sync.WaitGroup // counts the goroutines of messages in flight and of channels

	inFlight  int                      // number of messages in flight, on all channels
	retired   map[*consumeChannel]bool // channels that are no longer consumed, but still have messages in flight
	requeues  requeueCounts
	opening   *opening   // channel that is being opened, or nil
	arguments amqp.Table // arguments with which the queue was declared
	lostBy    int        // reason of the last interruption, as an index of series

	interruptionLogged bool
	consumedBefore     bool
}

func (s *Subscriber) newSubscription(ctx context.Context, topic string) *subscription {
	cfg := s.cfg.gathering(gather.Of(ctx))
	sub := &subscription{
		s:        s,
		cfg:      cfg,
		topic:    topic,
		queue:    s.config.Queue.GenerateName(topic),
		exchange: s.config.Exchange.GenerateName(topic),
		values:   context.WithoutCancel(ctx),
		out:      make(chan *message.Message),
		handled:  make(chan *delivery, cfg.InFlight),
		stopped:  make(chan struct{}),
		retired:  make(map[*consumeChannel]bool),
		requeues: make(requeueCounts),
	}
	ctx, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(s.closing, cancel)
	sub.ctx, sub.cancel = ctx, func() { stop(); cancel() }
	return sub
}

// startConsuming opens the first channel. It returns an error if the broker refuses the
// topology, or if the subscription has ended. If the channel cannot be opened for
// another reason, such as a lost connection, both results are nil, and the method run
// tries again.
func (sub *subscription) startConsuming() (*consumeChannel, error) {
	c, reason := sub.s.waitReady(sub.ctx)
	if err := sub.endReason(); err != nil {
		return nil, err
	}
	if c == nil {
		sub.s.cfg.Logger.Info("RabbitMQ consumer waiting for a connection",
			sub.fields().Add(watermill.LogFields{"reason": reason.Error()}))
		return nil, nil //nolint:nilnil // the doc comment explains it
	}
	ch, err := sub.openChannel(c)
	if refused, ok := errors.AsType[*topologyError](err); ok && refusesDeclaration(refused.error) {
		return nil, err
	}
	if ch == nil && sub.endReason() != nil {
		return nil, sub.endReason()
	}
	sub.logConsuming(c, err)
	return ch, nil
}

// endReason returns why the subscription ends, or nil if it continues.
func (sub *subscription) endReason() error {
	if sub.s.closing.Err() != nil {
		return ErrClosed
	}
	return sub.ctx.Err()
}

// run consumes until the subscription ends. It replaces lost channels.
func (sub *subscription) run(ch *consumeChannel) {
	for failed := 0; ; {
		if ch == nil && sub.s.retryPause().wait(sub.ctx, failed) {
			ch = sub.reopen()
		}
		if sub.ctx.Err() != nil {
			break
		}
		if ch == nil {
			failed++
			continue
		}
		began := time.Now()
		reason := sub.consume(ch)
		if sub.ctx.Err() != nil {
			break
		}
		sub.retire(ch, reason)
		ch = nil
		failed = sub.s.retryPause().failures(failed, began)
	}
	sub.end(ch)
}

// reopen waits for a connection, and opens a channel. If this fails, or if the
// subscription ends, it returns nil.
func (sub *subscription) reopen() *consumeChannel {
	c := sub.s.waitConnected(sub.ctx)
	if c == nil {
		return nil
	}
	ch, err := sub.openChannel(c)
	sub.logConsuming(c, err)
	return ch
}

// consume passes messages to the handlers, and sends their acks. When the channel
// delivers no more messages, it returns the reason. When the subscription ends, it
// returns nil.
func (sub *subscription) consume(ch *consumeChannel) error {
	for {
		out, next := sub.next(ch)
		select {
		case raw, ok := <-ch.deliveries:
			if !ok {
				return ch.endReason()
			}
			ch.unacked = append(ch.unacked, raw.DeliveryTag)
			ch.buffered = append(ch.buffered, sub.decode(ch, raw))
			failpoint.Hit("rabbit/received")
		case out <- next:
			sub.handOut(ch)
		case d := <-sub.handled:
			sub.settle(d)
		case <-sub.ctx.Done():
			return nil
		}
	}
}

// next returns the next message for the handlers, and the Go channel to which to send
// it. Both results are nil if there is no message, or if InFlight messages are in
// flight.
func (sub *subscription) next(ch *consumeChannel) (chan<- *message.Message, *message.Message) {
	if len(ch.buffered) == 0 || sub.inFlight == sub.cfg.InFlight {
		return nil, nil
	}
	return sub.out, ch.buffered[0].msg
}

// handOut records that a handler has received the first buffered message.
func (sub *subscription) handOut(ch *consumeChannel) {
	failpoint.Hit("rabbit/handed-over")
	d := ch.buffered[0]
	ch.buffered[0] = nil
	ch.buffered = ch.buffered[1:]
	d.handedOut = time.Now()
	ch.inFlight++
	sub.inFlight++
	sub.s.inFlight.Add(1)
	sub.running.Go(d.waitHandled)
}

// retire stops the use of a channel that delivers no more messages. If only the
// consumer was cancelled, messages in flight can still be acked, so the channel stays
// open until they are settled.
func (sub *subscription) retire(ch *consumeChannel, reason error) {
	sub.lostBy = ch.lostBy
	sub.logConsuming(ch.conn, reason)
	ch.giveBackBuffered()
	if ch.inFlight > 0 {
		sub.retired[ch] = true
		return
	}
	sub.running.Go(ch.close)
}

// logConsuming logs once that consuming was interrupted, and once that it continues. It
// does not log a lost connection, because the reconnector logs it.
func (sub *subscription) logConsuming(c *connection, err error) {
	switch {
	case err == nil:
		sub.s.cfg.Logger.Info("RabbitMQ consumer started", sub.fields())
		sub.interruptionLogged = false
		if sub.consumedBefore {
			sub.s.instruments.recovered.Add(1, sub.lostBy)
		} else {
			sub.logLimits(c)
		}
		sub.consumedBefore = true
	case !sub.interruptionLogged && sub.endReason() == nil && !c.amqp.IsClosed():
		sub.s.cfg.Logger.Error("RabbitMQ consumer interrupted, retrying", redact(err), sub.fields())
		sub.interruptionLogged = true
	}
}

func (sub *subscription) fields() watermill.LogFields {
	return watermill.LogFields{"topic": sub.topic, "queue": sub.queue}
}
