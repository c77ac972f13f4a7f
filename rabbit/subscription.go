package rabbit

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/watermill-once/once/internal/failpoint"
)

// subscription is what one call of Subscribe began. One goroutine does
// everything, acks included; one more for each message in flight waits for its
// answer.
type subscription struct {
	s                      *Subscriber
	topic, queue, exchange string

	ctx    context.Context // ends when no more messages are to be taken
	cancel context.CancelFunc
	values context.Context // Subscribe's, without its end

	out     chan *message.Message
	answers chan *delivery // has room for all that are in flight
	gone    chan struct{}  // closed when answers are no more taken
	running sync.WaitGroup // of messages in flight, and of channels

	held      int              // messages in flight, of whichever intake
	retired   map[*intake]bool // not consumed any more, but not all answered
	returned  nackCounts
	opening   *opening   // one that takes its time, or nil
	arguments amqp.Table // of the queue, as they were declared
	lostBy    int        // why consuming was interrupted last, as a series
	quiet     bool       // the interruption has been logged
	begun     bool       // it has consumed before
}

func (s *Subscriber) newSubscription(ctx context.Context, topic string) *subscription {
	sub := &subscription{
		s:        s,
		topic:    topic,
		queue:    s.config.Queue.GenerateName(topic),
		exchange: s.config.Exchange.GenerateName(topic),
		values:   context.WithoutCancel(ctx),
		out:      make(chan *message.Message),
		answers:  make(chan *delivery, s.cfg.InFlight),
		gone:     make(chan struct{}),
		retired:  make(map[*intake]bool),
		returned: make(nackCounts),
	}
	ctx, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(s.closing, cancel)
	sub.ctx, sub.cancel = ctx, func() { stop(); cancel() }
	return sub
}

// first begins to consume. Without a connection it returns neither an intake
// nor an error.
func (sub *subscription) first() (*intake, error) {
	l, why := sub.s.ready(sub.ctx)
	if err := sub.over(); err != nil {
		return nil, err
	}
	if l == nil {
		sub.s.cfg.Logger.Info("Consuming begins when there is a connection to RabbitMQ",
			sub.fields().Add(watermill.LogFields{"reason": why.Error()}))
		return nil, nil //nolint:nilnil // as said above
	}
	in, err := sub.open(l)
	if refused, ok := errors.AsType[*topologyError](err); ok && refusesDeclaration(refused.error) {
		return nil, err
	}
	if in == nil && sub.over() != nil {
		return nil, sub.over()
	}
	sub.report(l, err)
	return in, nil
}

// over says why the subscription is to end, if it is.
func (sub *subscription) over() error {
	if sub.s.closing.Err() != nil {
		return ErrClosed
	}
	return sub.ctx.Err()
}

// run consumes until the subscription is to end, over as many channels as it
// takes.
func (sub *subscription) run(in *intake) {
	for failed := 0; ; failed++ {
		if in == nil && sub.s.pace().pause(sub.ctx, failed) {
			in = sub.reopen()
		}
		if sub.ctx.Err() != nil {
			break
		}
		if in == nil {
			continue
		}
		began := time.Now()
		why := sub.consume(in)
		if sub.ctx.Err() != nil {
			break
		}
		sub.leave(in, why)
		in = nil
		if sub.s.pace().lasted(began) {
			failed = -1
		}
	}
	sub.end(in)
}

// reopen waits for a connection and begins to consume on it. It returns nil if
// that failed or the subscription is to end.
func (sub *subscription) reopen() *intake {
	l := sub.s.await(sub.ctx)
	if l == nil {
		return nil
	}
	in, err := sub.open(l)
	sub.report(l, err)
	return in
}

// consume takes messages and answers until the intake gives no more, and says
// why, or until the subscription is to end.
func (sub *subscription) consume(in *intake) error {
	for {
		out, next := sub.next(in)
		select {
		case raw, ok := <-in.deliveries:
			if !ok { // and so nothing was delivered
				return in.over()
			}
			in.open = append(in.open, raw.DeliveryTag)
			in.waiting = append(in.waiting, sub.decode(in, raw))
			failpoint.Hit("rabbit/received")
		case out <- next:
			sub.handOut(in)
		case d := <-sub.answers:
			sub.settle(d)
		case <-sub.ctx.Done():
			return nil
		}
	}
}

// next is the message to hand out, and where to; nowhere if there is none, or
// as many are in flight as may be.
func (sub *subscription) next(in *intake) (chan<- *message.Message, *message.Message) {
	if len(in.waiting) == 0 || sub.held == sub.s.cfg.InFlight {
		return nil, nil
	}
	return sub.out, in.waiting[0].msg
}

// handOut notes that the first of those that wait was taken.
func (sub *subscription) handOut(in *intake) {
	failpoint.Hit("rabbit/handed-over")
	d := in.waiting[0]
	in.waiting[0] = nil
	in.waiting = in.waiting[1:]
	d.taken = time.Now()
	in.unanswered++
	sub.held++
	sub.s.inFlight.Add(1)
	sub.running.Go(d.await)
}

// leave lets go of an intake that gives no more. What is in flight can still be
// acked if only the consumer was cancelled, so its channel stays open until then.
func (sub *subscription) leave(in *intake, why error) {
	sub.lostBy = in.lostBy
	sub.report(in.link, why)
	in.giveBack()
	if in.unanswered > 0 {
		sub.retired[in] = true
		return
	}
	sub.running.Go(in.close)
}

// report logs when consuming is interrupted and when it goes on. What is wrong
// with the connection itself is logged by who keeps it.
func (sub *subscription) report(l *link, err error) {
	switch {
	case err == nil:
		sub.s.cfg.Logger.Info("Consuming from RabbitMQ", sub.fields())
		sub.quiet = false
		if sub.begun {
			sub.s.instruments.recovered.Add(1, sub.lostBy)
		} else {
			sub.warn(l)
		}
		sub.begun = true
	case !sub.quiet && sub.over() == nil && !l.conn.IsClosed():
		sub.s.cfg.Logger.Error("Not consuming from RabbitMQ, will keep trying", redact(err), sub.fields())
		sub.quiet = true
	}
}

func (sub *subscription) fields() watermill.LogFields {
	return watermill.LogFields{"topic": sub.topic, "queue": sub.queue}
}

// topologyError is that the topology could not be declared.
type topologyError struct{ error }

func (e *topologyError) Unwrap() error { return e.error }

// declare declares the topology, on channel or before it.
func (sub *subscription) declare(l *link, channel *amqp.Channel) error {
	sub.arguments = sub.s.config.Queue.Arguments
	if safe, ok := withoutLimit(sub.arguments, l.conn.Properties); ok {
		// The broker closes the channel when it refuses.
		err := onChannel(l.conn, func(channel *amqp.Channel) error { return sub.build(channel, safe) })
		switch {
		case err == nil:
			sub.arguments = safe
			return nil
		case !isPrecondition(err):
			return sub.refused(err)
		}
		// The queue is older, or somebody else's, and has other arguments.
	}
	if err := sub.build(channel, sub.arguments); err != nil {
		return sub.refused(err)
	}
	return nil
}

// build declares the topology with other arguments of the queue.
func (sub *subscription) build(channel *amqp.Channel, queue amqp.Table) error {
	config := sub.s.config
	config.Queue.Arguments = queue
	return config.TopologyBuilder.BuildTopology(channel, sub.queue, sub.exchange, config, sub.s.cfg.Logger)
}

func (sub *subscription) refused(err error) error {
	return &topologyError{fmt.Errorf("rabbit: topology of topic %q: %w", sub.topic, redact(err))}
}

// onChannel calls f with a channel of its own, and returns f's error, or why the
// broker closed the channel. With NoWait that is known only when the channel is
// closed, or came before: then Close returns nil.
func onChannel(conn *amqp.Connection, f func(channel *amqp.Channel) error) error {
	channel, err := conn.Channel()
	if err != nil {
		return err
	}
	refused := channel.NotifyClose(make(chan *amqp.Error, 1))
	err = f(channel)
	if closed := channel.Close(); err == nil {
		err = closed
	}
	if why, ok := <-refused; ok && err == nil {
		return why
	}
	return err
}
