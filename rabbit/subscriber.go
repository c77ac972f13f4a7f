package rabbit

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"
)

var (
	_ message.Subscriber           = (*Subscriber)(nil)
	_ message.SubscribeInitializer = (*Subscriber)(nil)
)

// ErrGivenBack is the error of Close that messages were still being handled when
// CloseTimeout was over. The broker delivers them again.
var ErrGivenBack = errors.New("rabbit: given back without an ack")

// Subscriber consumes with many messages in flight. It is safe for concurrent
// use; all its subscriptions share one connection, and each has a channel.
//
// The messages of a subscription come out of its one Go channel, and each waits
// for its own Ack or Nack. An ack goes to the AMQP channel that its message came
// from, or nowhere if that is gone. The context of a message has the values of
// Subscribe's, but not its end: it ends when the message is answered, or when
// that can no longer reach the broker, because the connection is lost or
// CloseTimeout is over.
//
// A nacked message goes back to its queue after a pause that grows (NackMin,
// NackMax), by basic.nack with requeue: from RabbitMQ 4.3 that does not count
// towards the queue's delivery limit. With Consume.NoRequeueOnNack it is dropped
// or dead-lettered instead, without a pause.
//
// Lost connections, closed channels, and consumers that the broker cancelled,
// for instance because the queue was deleted, are logged once and made anew,
// with the topology declared again through Config.TopologyBuilder.
//
// A message that Config.Marshaler cannot read is delivered as Marshaler reads
// it: metadata in text, payload as it came. The middlewares of this module take
// it for a permanent failure and do not call the handler, so that poison
// quarantines it; other handlers ask [Undecodable].
type Subscriber struct {
	config amqp.Config
	cfg    SubscriberConfig

	ctx     context.Context // ends when all subscriptions have ended
	cancel  context.CancelFunc
	closing context.Context // ends when Close is called
	stop    context.CancelFunc
	kept    chan struct{} // closed when the keeper has ended

	closeOnce sync.Once
	closeErr  error

	instruments   *subscriberInstruments
	inFlight      atomic.Int64
	givenBack     atomic.Int64 // by subscriptions that Close ended
	subscriptions sync.WaitGroup
	left          sync.WaitGroup // of what they leave behind, which ends with the connection

	mu        sync.Mutex
	closed    bool
	link      *link         // the connection, or nil
	down      error         // why there is none
	downSince time.Time     // since when
	changed   chan struct{} // closed when that changes
}

// NewSubscriber takes watermill-amqp's config; what it reads there is
// Connection, Marshaler (nil is Marshaler{}), Exchange, Queue, QueueBind,
// Consume and TopologyBuilder (nil is the default one). Every subscription has a
// channel of its own, so Consume.Qos.Global has no meaning here.
//
// It does not need the broker: it connects in the background and keeps trying,
// whatever goes wrong. An error of NewSubscriber is one of the configuration,
// and names every field that is wrong.
func NewSubscriber(config amqp.Config, cfg SubscriberConfig) (*Subscriber, error) {
	config, cfg = cfg.withDefaults(config)
	if err := cfg.validate(config); err != nil {
		return nil, err
	}
	s := &Subscriber{
		config:    config,
		cfg:       cfg,
		kept:      make(chan struct{}),
		down:      errConnecting,
		downSince: time.Now(),
		changed:   make(chan struct{}),
	}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.closing, s.stop = context.WithCancel(context.Background())
	s.instruments = newSubscriberInstruments(s)
	go func() {
		defer close(s.kept)
		s.keeper().keep(s)
	}()
	return s, nil
}

func (s *Subscriber) keeper() *keeper {
	return &keeper{
		ctx:      s.ctx,
		config:   s.config.Connection,
		pace:     s.pace(),
		dial:     s.cfg.DialTimeout,
		write:    s.cfg.WriteTimeout,
		logger:   s.cfg.Logger,
		connects: s.instruments.connects,
	}
}

func (s *Subscriber) pace() pace { return pace{s.cfg.ReconnectMin, s.cfg.ReconnectMax} }

// Subscribe declares the topology of topic and consumes its queue, until ctx
// ends or Close is called. It returns when it consumes, or, if there is no
// connection within ReadyTimeout, when it has found that: then it begins when
// there is one.
//
// Its error is that the broker refuses the topology, for instance because there
// is a queue of that name and another kind; or that ctx has ended or the
// Subscriber is closed ([ErrClosed]).
//
// When ctx ends, or at Close, messages that no handler has yet go back to the
// queue, and those in flight have CloseTimeout to be acked or nacked. Then the
// returned channel is closed. A queue that does not answer is waited for until
// DialTimeout is over; it gets its messages back when it answers, or at Close.
func (s *Subscriber) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	if !s.begin() {
		return nil, ErrClosed
	}
	sub := s.newSubscription(ctx, topic)
	in, err := sub.first()
	if err != nil {
		sub.cancel()
		sub.abandon()
		sub.ended()
		s.subscriptions.Done()
		return nil, err
	}
	go func() {
		defer s.subscriptions.Done()
		sub.run(in)
	}()
	return sub.out, nil
}

// SubscribeInitialize declares the topology of topic. It waits for a connection
// for ReadyTimeout at most, and then for the broker for DialTimeout; if that is
// not enough, that is the error.
func (s *Subscriber) SubscribeInitialize(topic string) error {
	if !s.begin() {
		return ErrClosed
	}
	defer s.subscriptions.Done()
	l, err := s.ready(s.closing)
	if err != nil {
		return fmt.Errorf("rabbit: topic %q: %w", topic, err)
	}
	declared := make(chan error, 1)
	s.left.Go(func() {
		declared <- l.patiently(func() error { return s.initialize(l, topic) })
	})
	limit := time.NewTimer(l.timeout)
	defer limit.Stop()
	select {
	case err := <-declared:
		return redact(err)
	case <-limit.C:
		return fmt.Errorf("rabbit: topic %q: %w", topic, errSlow)
	}
}

func (s *Subscriber) initialize(l *link, topic string) error {
	sub := s.newSubscription(s.closing, topic)
	defer sub.cancel()
	return onChannel(l.conn, func(channel *amqp091.Channel) error { return sub.declare(l, channel) })
}

// begin reports false when the Subscriber is closed. Else Close waits for
// subscriptions.Done.
func (s *Subscriber) begin() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return false
	}
	s.subscriptions.Add(1)
	return true
}

// Close takes no more messages, gives back those that no handler has yet, waits
// for those in flight for up to CloseTimeout, gives back the rest by closing
// their channels, and closes the connection. What is acked meanwhile is acked.
// When it returns, the channels of all subscriptions are closed, and no
// goroutine is left. It does not hang on a broker that does not answer.
//
// The error is ErrGivenBack with the number of messages, if there were any.
// Calling Close again waits for the first call and returns the same.
func (s *Subscriber) Close() error {
	s.closeOnce.Do(func() { s.closeErr = s.close() })
	return s.closeErr
}

func (s *Subscriber) close() error {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()

	s.stop()
	s.subscriptions.Wait()
	s.cancel()
	<-s.kept
	s.left.Wait()
	s.instruments.unobserve()

	if n := s.givenBack.Load(); n > 0 {
		return fmt.Errorf("%w: %d messages that were in flight after CloseTimeout %v", ErrGivenBack, n, s.cfg.CloseTimeout)
	}
	return nil
}

// serve implements keeps.
func (s *Subscriber) serve(l *link) (polite bool, why error) {
	s.mu.Lock()
	s.link = l
	s.broadcast()
	s.mu.Unlock()
	select {
	case <-s.ctx.Done():
		return true, ErrClosed
	case reason, ok := <-l.closed:
		return false, l.reason(reason, ok)
	}
}

// disconnected implements keeps.
func (s *Subscriber) disconnected(why error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.link != nil {
		s.downSince = time.Now()
	}
	s.link, s.down = nil, why
	s.broadcast()
}

// broadcast tells those who wait that something has changed. The lock is held.
func (s *Subscriber) broadcast() {
	close(s.changed)
	s.changed = make(chan struct{})
}

// ready returns the connection, if there is one before ReadyTimeout is over.
// Else the error says what stands in the way.
func (s *Subscriber) ready(ctx context.Context) (*link, error) {
	s.mu.Lock()
	left := time.Until(s.downSince.Add(s.cfg.ReadyTimeout))
	s.mu.Unlock()
	limited, cancel := context.WithTimeout(ctx, max(left, time.Millisecond))
	defer cancel()
	if l := s.await(limited); l != nil {
		return l, nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return nil, errors.Join(ctx.Err(), s.down)
}

// await returns the connection as soon as there is one, or nil when ctx has
// ended.
func (s *Subscriber) await(ctx context.Context) *link {
	for {
		s.mu.Lock()
		l, changed := s.link, s.changed
		s.mu.Unlock()
		if l != nil && !l.conn.IsClosed() {
			return l
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil
		}
	}
}
