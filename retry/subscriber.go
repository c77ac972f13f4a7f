package retry

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/internal/chain"
	"github.com/watermill-once/once/internal/failpoint"
	"github.com/watermill-once/once/internal/parkedrows"
	"github.com/watermill-once/once/internal/usercode"
)

// Subscriber wraps the subscriber of one handler. It delivers the messages of sub. It also delivers
// the consumer's parked messages when they are due, and replayed ones. consumer is the permanent
// name under which messages are counted, parked and deduplicated. You may rename the router's
// handler, but not the consumer.
//
// Wrap each subscriber yourself. A subscriber decorator of the router cannot, because it does not
// know the consumer's name.
//
// A process may run only one handler for each consumer and topic. While another
// subscription with the same *sql.DB uses the consumer and topic, Subscribe fails with
// [ErrConsumerInUse], unless Config.ShareConsumer is set. The consumer name may be used
// for other topics, and by other processes of the service. If a handler with another
// name, or in another program, uses the consumer name in the same database, an error is
// logged.
//
// Close stops fetching, closes sub, and waits up to Config.CloseTimeout for the acks of
// messages that handlers have received. If acks are still missing after that time,
// Close returns an error that wraps [ErrGivenBack] and contains the number of messages.
// After Close, Subscribe fails. If the context of a subscription ends, the subscription
// ends in the same way.
func (r *Retries) Subscriber(consumer string, sub message.Subscriber) message.Subscriber {
	return &subscriber{retries: r, consumer: consumer, sub: sub}
}

type subscriber struct {
	retries  *Retries
	consumer string
	sub      message.Subscriber

	mu      sync.Mutex
	closed  bool
	cancels []context.CancelFunc

	closeOnce  sync.Once
	closeErr   error
	running    sync.WaitGroup
	unanswered atomic.Int64 // number of messages that were neither acked nor nacked when CloseTimeout had passed
}

// Subscribe implements message.Subscriber.
func (s *subscriber) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	switch {
	case s.consumer == "":
		return nil, errors.New("retry: the consumer name of Subscriber is empty")
	case s.sub == nil:
		return nil, errors.New("retry: the subscriber given to Subscriber is nil")
	}
	if err := parkedrows.CheckName(s.consumer); err != nil {
		return nil, fmt.Errorf("retry: the consumer name of Subscriber: %w", err)
	}
	if err := parkedrows.CheckName(topic); err != nil {
		return nil, fmt.Errorf("retry: the topic: %w", err)
	}
	closing, err := s.withShutdown(ctx)
	if err != nil {
		return nil, err
	}
	use, drop, err := s.retries.store.Use(s.consumer, topic, s.retries.config.ShareConsumer, closing.Done())
	if err != nil {
		return nil, fmt.Errorf("retry: %w: give each handler its own consumer name; "+
			"to add one handler more than once, set retry.Config.ShareConsumer", inUseError{err})
	}
	f := newFetcher(s, topic, closing.Done(), usercode.InFlight(ctx))
	f.use, f.begun = use, make(chan struct{})
	f.pauses = s.retries.store.WatchPauses(closing, s.consumer, topic, s.retries.config.Logger)
	f.breaker, f.limiter = newBreaker(f), newLimiter(f)
	f.awaitCall = f.limiter.again
	in := &inlet{fetcher: f, sub: s.sub, ctx: ctx}
	if now, _ := f.pauses.Intake(parkedrows.FromTransport); now != parkedrows.IntakePaused {
		if err := in.subscribe(); err != nil {
			f.pauses.Stop()
			drop()
			return nil, err
		}
	}

	out := make(chan *message.Message)
	unwatch := s.retries.watch()
	over, endWait := context.WithCancel(context.Background())
	f.closeTimeout = over.Done()
	context.AfterFunc(closing, func() { time.AfterFunc(s.retries.config.CloseTimeout, endWait) })
	s.running.Go(func() {
		defer close(out) // last, because the router may end as soon as out is closed
		defer endWait()
		defer drop()
		defer unwatch()
		defer f.pauses.Stop()
		var both sync.WaitGroup
		both.Go(func() { f.forward(in, out) })
		both.Go(func() { f.run(ctx, out) })
		both.Go(func() { f.limiter.run(closing) })
		if f.breaker != nil {
			both.Go(func() { f.breaker.run(closing) })
		}
		both.Wait()
	})
	return out, nil
}

// withShutdown returns a context that also ends at the beginning of Close, so that a handler that
// fails because the transport closes is not charged with an attempt.
func (s *subscriber) withShutdown(ctx context.Context) (context.Context, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, errClosed
	}
	closing, cancel := context.WithCancel(ctx)
	s.cancels = append(s.cancels, cancel)
	return closing, nil
}

// SubscribeInitialize implements message.SubscribeInitializer, if the wrapped subscriber does.
func (s *subscriber) SubscribeInitialize(topic string) error {
	if initializer, ok := s.sub.(message.SubscribeInitializer); ok {
		return initializer.SubscribeInitialize(topic)
	}
	return nil
}

// Close implements message.Subscriber.
func (s *subscriber) Close() error {
	s.closeOnce.Do(func() {
		s.mu.Lock()
		s.closed = true
		for _, cancel := range s.cancels {
			cancel()
		}
		s.mu.Unlock()
		if s.sub != nil {
			s.closeErr = s.sub.Close()
		}
		s.running.Wait()
		if n := s.unanswered.Load(); n > 0 {
			s.closeErr = errors.Join(s.closeErr,
				fmt.Errorf("%w: %d messages had neither ack nor nack after CloseTimeout %v", ErrGivenBack, n, s.retries.config.CloseTimeout))
		}
	})
	return s.closeErr
}

// A batch ends at storeBatch messages, or when their size reaches storeBytes, because PostgreSQL
// accepts statements of at most 1 GB.
const (
	storeBatch = 100
	storeBytes = 8 << 20
)

// arrivals stores messages with an ordering key in the order of their arrival. While one goroutine
// stores a batch, the next batch is collected.
type arrivals struct {
	*fetcher

	next     []*message.Message
	bytes    int       // bytes of the payloads of the messages in next
	storing  chan bool // receives whether the current batch was stored; nil if no batch is being stored
	rejected bool      // a message was nacked, so all later messages must be nacked too
}

// forward sends the transport's messages to out, with the consumer's name in their contexts. With
// Config.KeyOrder, messages with an ordering key are stored instead, and the fetcher delivers them
// later.
//
// While the consumer is paused, the subscription to the transport is closed, so that messages stay
// in the broker.
func (f *fetcher) forward(in *inlet, out chan<- *message.Message) {
	a := &arrivals{fetcher: f}
	for !in.ended || a.storing != nil || len(a.next) > 0 {
		if a.storing == nil && len(a.next) > 0 {
			a.store(in.ctx)
			continue
		}
		intake, changed := f.pauses.Intake(parkedrows.FromTransport)
		switch {
		case in.ended:
		case (intake == parkedrows.IntakePaused || in.messages == nil) && a.storing == nil:
			in.pause()
			continue
		case intake.Starts() && in.kept != nil:
			in.handOutKept(out)
			continue
		}
		from, closing := in.messages, f.closing
		switch {
		case in.ended:
			closing = nil
		case !intake.Starts():
			from = nil
		case len(a.next) == storeBatch || a.bytes >= storeBytes:
			from, closing = nil, nil
		default:
			closing = nil
		}
		select {
		case msg, ok := <-from:
			switch {
			case !ok:
				in.end()
			case f.ordered(msg):
				a.add(msg)
			default:
				msg.SetContext(f.breaker.with(parkedrows.WithDelivery(msg.Context(), f.delivery(nil))))
				in.handOut(msg, out)
			}
		case <-changed:
		case <-closing: // nothing may be handled any more, because the consumer is paused or may be
			in.returnAll()
		case ok := <-a.storing:
			a.storing, a.rejected = nil, !ok
			a.nackRejected()
		}
	}
}

// ordered reports whether msg must be handled in order. An undecodable message will be quarantined.
func (f *fetcher) ordered(msg *message.Message) bool {
	return f.config.KeyOrder != Unordered && parkedrows.OrderingKey(msg) != "" && chain.Unrunnable(msg.Context()) == nil
}

func (a *arrivals) add(msg *message.Message) {
	a.next = append(a.next, msg)
	a.bytes += len(msg.Payload)
	a.nackRejected()
}

// nackRejected nacks all messages after a nacked one, because they must not be handled before it.
func (a *arrivals) nackRejected() {
	if !a.rejected {
		return
	}
	for _, msg := range a.next {
		msg.Nack()
	}
	a.next, a.bytes = nil, 0
}

// store starts to store the collected messages. It fails only if the consumer shuts down. After a
// timeout it tries smaller batches, because the same batch could time out again and again.
func (a *arrivals) store(ctx context.Context) {
	left, part := a.next, len(a.next)
	a.next, a.bytes, a.storing = nil, 0, make(chan bool, 1)
	go func(stored chan<- bool) {
		patience := a.patience
		patience.UnackedWait = math.MaxInt64
		err := patience.Persist(ctx, a.delivery(nil), "store messages in the order of their keys", func(ctx context.Context) error {
			for len(left) > 0 {
				batch := left[:min(part, len(left))]
				err := a.Retries.store.DeliverTo(ctx, a.topic, []parkedrows.Subscription{a.subscription()}, batch...)
				if err != nil {
					if ctx.Err() != nil {
						part = max(part/2, 1)
					}
					return err
				}
				a.ackStored(batch)
				left = left[len(batch):]
			}
			return nil
		})
		if err != nil {
			a.config.Logger.Info("Messages are nacked because the consumer shuts down",
				watermill.LogFields{"consumer": a.consumer, "topic": a.topic, "messages": len(left), "err": err.Error()})
		}
		for _, msg := range left {
			msg.Nack()
		}
		stored <- err == nil
	}(a.storing)
}

func (a *arrivals) ackStored(msgs []*message.Message) {
	for _, msg := range msgs {
		failpoint.Hit("retry/stored")
		msg.Ack()
	}
	a.instruments.stored.Add(int64(len(msgs)), 0)
	a.wakeUp()
}
