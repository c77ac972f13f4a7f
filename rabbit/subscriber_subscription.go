package rabbit

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/rabbitmq/amqp091-go"

	"github.com/watermill-once/once/internal/failpoint"
	"github.com/watermill-once/once/internal/telemetry"
	"github.com/watermill-once/once/internal/usercode"
)

// subscription is the state of one call of Subscribe. A single goroutine does its work, and one for
// each message in flight waits for the ack or nack.
type subscription struct {
	s                      *Subscriber
	cfg                    SubscriberConfig
	topic, queue, exchange string

	ctx    context.Context // ends when the subscription ends
	cancel context.CancelFunc
	values context.Context // has the values of Subscribe's context, but never ends

	out     chan *message.Message
	handled chan *delivery // has room for all messages in flight
	wake    chan struct{}  // has room for one signal: a buffered message no longer waits for an earlier call
	stopped chan struct{}  // closed when the subscription stops reading from handled
	running sync.WaitGroup // counts the goroutines of messages in flight and of channels

	inFlight  int                      // number of messages in flight, on all channels
	retired   map[*consumeChannel]bool // channels of deleted queues, which still send the acks of messages in flight
	requeues  requeueCounts
	opening   *opening      // channel that is being opened, or nil
	arguments amqp091.Table // arguments with which the queue was declared
	lostBy    int           // reason of the last interruption, as an index of series

	interruptionLogged bool
	consumedBefore     bool

	consumed func() // counts a delivered message
}

func (s *Subscriber) newSubscription(ctx context.Context, topic string) *subscription {
	cfg, system := s.cfg.gathering(usercode.InFlight(ctx)), systemOf(s.config.Connection.AmqpURI)
	sub := &subscription{
		s:        s,
		cfg:      cfg,
		topic:    topic,
		queue:    s.config.Queue.GenerateName(topic),
		exchange: s.config.Exchange.GenerateName(topic),
		values:   context.WithoutCancel(telemetry.WithSystem(ctx, system)),
		consumed: s.instruments.consumed.Of(system, "consume", topic),
		out:      make(chan *message.Message),
		handled:  make(chan *delivery, cfg.InFlight),
		wake:     make(chan struct{}, 1),
		stopped:  make(chan struct{}),
		retired:  make(map[*consumeChannel]bool),
		requeues: make(requeueCounts),
	}
	ctx, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(s.closing, cancel)
	sub.ctx, sub.cancel = ctx, func() { stop(); cancel() }
	return sub
}

// startConsuming returns an error if the broker refuses the topology, or the subscription has
// ended. If there is no channel for another reason, such as a lost connection, both results are
// nil, and run tries again.
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
	var ch *consumeChannel
	err := sub.s.setUp(sub.topic, func() (err error) {
		ch, err = sub.openChannel(c)
		return err
	})
	if refused, ok := errors.AsType[*topologyError](err); closedBy(err) || errors.Is(err, ErrForbidden) ||
		ok && refusesDeclaration(refused.error) {
		return nil, err
	}
	if ch == nil && sub.endReason() != nil {
		return nil, sub.endReason()
	}
	sub.logConsuming(c, err)
	return ch, nil
}

func (sub *subscription) endReason() error {
	if sub.s.closing.Err() != nil {
		return ErrClosed
	}
	return sub.ctx.Err()
}

// run replaces lost channels until the subscription ends.
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
		sub.s.consuming.Add(1)
		reason := sub.consume(ch)
		sub.s.consuming.Add(-1)
		if sub.ctx.Err() != nil {
			break
		}
		sub.retire(ch, reason)
		ch = nil
		failed = sub.s.retryPause().failures(failed, began)
		if errors.Is(reason, errTimedOut) {
			failed = 1 // the broker works, so a longer pause would only delay the other messages
		}
	}
	sub.end(ch)
}

// reopen returns nil if it fails, or if the subscription ends.
func (sub *subscription) reopen() *consumeChannel {
	c := sub.s.waitConnected(sub.ctx)
	if c == nil {
		return nil
	}
	ch, err := sub.openChannel(c)
	sub.logConsuming(c, err)
	if errors.Is(err, errNoReply) {
		sub.s.leave(c)
	}
	return ch
}

// consume returns why the channel delivers no more messages, or nil when the subscription ends.
func (sub *subscription) consume(ch *consumeChannel) error {
	var check <-chan time.Time
	if ch.conn.others {
		ticker := time.NewTicker(sub.cfg.checkInterval)
		defer ticker.Stop()
		check = ticker.C
	}
	for {
		out, next := sub.next(ch)
		select {
		case <-ch.cancelled:
			return ch.endReason()
		case raw, ok := <-ch.deliveries:
			if !ok {
				return ch.endReason()
			}
			ch.conn.activity.Add(1)
			ch.unacked = append(ch.unacked, raw.DeliveryTag)
			d := sub.decode(ch, raw)
			sub.waitForEarlierCalls(d)
			ch.buffered = append(ch.buffered, d)
			failpoint.Hit("rabbit/received")
		case out <- next.message():
			sub.handOut(next)
		case d := <-sub.handled:
			sub.settle(d)
		case <-sub.wake:
		case <-check:
			ch.checkQuietNode()
		case <-sub.ctx.Done():
			return nil
		}
	}
}

// Both results of next are nil if there is no message, or InFlight are in flight. A message whose
// earlier call still runs is skipped.
func (sub *subscription) next(ch *consumeChannel) (chan<- *message.Message, *delivery) {
	if sub.inFlight < sub.cfg.InFlight {
		for _, d := range ch.buffered {
			if d.mayRun() {
				return sub.out, d
			}
		}
	}
	return nil, nil
}

func (sub *subscription) handOut(d *delivery) {
	failpoint.Hit("rabbit/handed-over")
	ch := d.channel
	if at := slices.Index(ch.buffered, d); at == 0 {
		ch.buffered[0] = nil
		ch.buffered = ch.buffered[1:]
	} else {
		ch.buffered = slices.Delete(ch.buffered, at, at+1)
	}
	d.handedOut = time.Now()
	sub.s.calls.add(d)
	ch.inFlight++
	sub.inFlight++
	sub.s.inFlight.Add(1)
	sub.running.Go(d.waitHandled)
}

// retire stops the use of a channel that delivers no more messages. If the queue was deleted,
// messages in flight can still be acked, so it stays open until then. Otherwise it is closed, and
// the broker delivers its unacked messages again.
func (sub *subscription) retire(ch *consumeChannel, reason error) {
	sub.lostBy = ch.lostBy
	sub.logConsuming(ch.conn, reason)
	ch.giveBackBuffered()
	if ch.inFlight > 0 && !ch.isLost() {
		sub.retired[ch] = true
		return
	}
	sub.running.Go(ch.close)
}

// logConsuming logs each of these once: an interruption, a missing right, and the continuation. The
// reconnector logs the loss of the shared connection.
func (sub *subscription) logConsuming(c *connection, err error) {
	news := sub.recordRefusal(err) || !sub.interruptionLogged
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
	case news && sub.endReason() == nil && (c.alone || !c.amqp.IsClosed()):
		sub.s.cfg.Logger.Error("RabbitMQ consumer interrupted, retrying", redact(err), sub.fields())
		sub.interruptionLogged = true
	}
}

func (sub *subscription) fields() watermill.LogFields {
	return watermill.LogFields{"topic": sub.topic, "queue": sub.queue}
}

var errCloseTimeout = errors.New("rabbit: CloseTimeout is over")

// end waits for the messages in flight, and returns the others to the queue. Requests that a stuck
// queue delays continue in the background until the broker replies or the connection is closed.
// Without a channel, ch is nil.
func (sub *subscription) end(ch *consumeChannel) {
	defer sub.cancel()
	sub.recordRefusal(nil)
	sub.discardOpening()
	began, patience := time.Now(), sub.s.cfg.DialTimeout
	if !sub.drain(ch) {
		patience -= time.Since(began)
	}
	if ch != nil {
		sub.retired[ch] = true
	}
	sub.countGivenBack()

	close(sub.stopped)
	for ch := range sub.retired {
		ch.lose(errCloseTimeout) // end the contexts of messages before the broker can deliver the messages to another consumer
		sub.running.Go(ch.close)
	}
	limit := time.NewTimer(patience)
	defer limit.Stop()
	select {
	case <-sub.ended():
	case <-limit.C:
		sub.s.cfg.Logger.Error("Unacked messages return to the queue when RabbitMQ replies", errNoReply, sub.fields())
	}
	close(sub.out)
	sub.s.cfg.Logger.Info("RabbitMQ consumer stopped", sub.fields())
}

// drain settles deliveries until none is in flight, or CloseTimeout is over. Buffered messages
// return to the queue only when the broker has stopped delivering, because it would deliver them to
// this consumer again. drain waits up to DialTimeout for this, and reports it.
func (sub *subscription) drain(ch *consumeChannel) (stopped bool) {
	slow, deadline := time.NewTimer(sub.s.cfg.DialTimeout), time.NewTimer(sub.s.cfg.CloseTimeout)
	defer slow.Stop()
	defer deadline.Stop()

	if ch == nil {
		ch = &consumeChannel{}
	} else {
		sub.running.Go(ch.stop)
	}
	deliveries := ch.deliveries
	for awaited := deliveries != nil; awaited || sub.inFlight > 0; {
		select {
		case raw, ok := <-deliveries:
			if !ok {
				deliveries, awaited = nil, false
				ch.giveBackBuffered()
				continue
			}
			ch.buffered = append(ch.buffered, &delivery{channel: ch, raw: raw, cancel: func() {}})
		case d := <-sub.handled:
			sub.settle(d)
		case <-slow.C:
			awaited = false
		case <-deadline.C:
			return deliveries == nil
		}
	}
	return deliveries == nil
}

// ended is closed when all goroutines of the subscription have ended, for which Close waits after
// it has closed the connection.
func (sub *subscription) ended() <-chan struct{} {
	ended := make(chan struct{})
	sub.s.background.Go(func() {
		sub.running.Wait()
		close(ended)
	})
	return ended
}

func (sub *subscription) countGivenBack() {
	if sub.inFlight == 0 {
		return
	}
	sub.s.inFlight.Add(-int64(sub.inFlight))
	sub.s.instruments.settled.Add(int64(sub.inFlight), lost)
	if sub.s.closing.Err() != nil {
		sub.s.givenBack.Add(int64(sub.inFlight))
	}
	sub.s.cfg.Logger.Error("Messages in flight given back", errCloseTimeout,
		sub.fields().Add(watermill.LogFields{"messages": sub.inFlight}))
}
