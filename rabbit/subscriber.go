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
)

var (
	_ message.Subscriber           = (*Subscriber)(nil)
	_ message.SubscribeInitializer = (*Subscriber)(nil)
)

// ErrGivenBack means that handlers were still running when Subscriber.Close had waited for
// CloseTimeout. Their messages are delivered again.
var ErrGivenBack = errors.New("rabbit: given back without an ack")

// Subscriber consumes with many messages in flight. It is safe for concurrent use. All its
// subscriptions share one connection, unless the broker answers a declaration by closing it; each
// has its own AMQP channel.
//
// A subscription has one Go channel, and waits for the Ack or Nack of each message separately. An
// ack goes to the AMQP channel that delivered the message, or is logged and dropped if that is
// closed. The context of a message has the values of Subscribe's context, but ends when the message
// is acked or nacked, the connection is lost, the consumer timeout of the broker has passed, or
// CloseTimeout has passed.
//
// A message that the broker delivers again while a handler still runs with it waits for that
// handler.
//
// A nacked message returns to its queue (basic.nack with requeue) after a growing pause (NackMin,
// NackMax). Since RabbitMQ 4.3, this does not count towards the queue's delivery limit. With
// Consume.NoRequeueOnNack, the broker drops or dead-letters it instead, without a pause.
//
// The Subscriber recovers from a lost connection, a closed channel, and a cancelled consumer, for
// example because its queue was deleted. It logs the loss once, declares the topology again through
// Config.TopologyBuilder, and continues. If the user may not declare the queue, it is enough that
// it exists.
//
// If the broker refuses a running subscription because the user lacks a right, such as after its
// token has expired, the Subscriber logs an error, Ping returns it, and it tries again with the
// present credentials, see amqp091.Config.SASL. Other subscriptions are not affected.
//
// A message that Config.Marshaler cannot read is read by [Marshaler], with headers as text and the
// payload unchanged. For the middlewares of this module it is a permanent failure: the handler is
// not called, and poison quarantines it. Other handlers must call [Undecodable].
type Subscriber struct {
	config amqp.Config
	cfg    SubscriberConfig

	ctx             context.Context // ends when all subscriptions have ended
	cancel          context.CancelFunc
	closing         context.Context // ends when Close is called
	startClosing    context.CancelFunc
	reconnectorDone chan struct{} // closed when the reconnector has ended

	closeOnce sync.Once
	closeErr  error

	nodes         *nodes
	instruments   *subscriberInstruments
	calls         handlerCalls
	inFlight      atomic.Int64
	consuming     atomic.Int64 // number of subscriptions with a channel
	givenBack     atomic.Int64 // number of messages that were given back because of Close
	refusesChecks atomic.Bool  // whether the broker has closed a connection to refuse a check of the node
	subscriptions sync.WaitGroup
	background    sync.WaitGroup // requests of subscriptions that have already ended; a request ends with the connection at the latest

	mu        sync.Mutex
	closed    bool
	conn      *connection     // may be nil
	down      error           // why there is no connection
	downSince time.Time       // when the connection was lost, or when NewSubscriber was called
	changed   chan struct{}   // closed when conn or down changes
	alone     map[string]bool // topics whose next setup needs a connection of its own

	forbidden map[*subscription]error // subscriptions for which the user lacks a right
}

// NewSubscriber returns a Subscriber for watermill-amqp's config. It reads Connection, Marshaler
// (or Marshaler{}), Exchange, Queue, QueueBind, Consume and TopologyBuilder (or watermill-amqp's
// default). It ignores Consume.Qos.Global, because every subscription has its own channel.
//
// The Subscriber connects in the background, and tries again after every error. NewSubscriber fails
// only for an invalid configuration, and names every invalid field.
func NewSubscriber(config amqp.Config, cfg SubscriberConfig) (*Subscriber, error) {
	config, cfg = cfg.withDefaults(config)
	if err := cfg.validate(config); err != nil {
		return nil, err
	}
	s := &Subscriber{
		config:          config,
		cfg:             cfg,
		nodes:           newNodes(cfg.Nodes),
		reconnectorDone: make(chan struct{}),
		down:            errConnecting,
		downSince:       time.Now(),
		changed:         make(chan struct{}),
		alone:           make(map[string]bool),
		forbidden:       make(map[*subscription]error),
	}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.closing, s.startClosing = context.WithCancel(context.Background())
	s.instruments = newSubscriberInstruments(s)
	go func() {
		defer close(s.reconnectorDone)
		s.reconnector().run(s)
	}()
	return s, nil
}

func (s *Subscriber) reconnector() *reconnector {
	return &reconnector{
		ctx:      s.ctx,
		config:   s.config.Connection,
		dial:     s.dialSettings(),
		pause:    s.retryPause(),
		logger:   s.cfg.Logger,
		connects: s.instruments.connects,
	}
}

func (s *Subscriber) dialSettings() dialSettings {
	return dialSettings{dialTimeout: s.cfg.DialTimeout, writeTimeout: s.cfg.WriteTimeout, nodes: s.nodes}
}

func (s *Subscriber) retryPause() retryPause {
	return retryPause{s.cfg.reconnectMin, s.cfg.reconnectMax}
}

// Subscribe declares the topology of topic, and consumes its queue until ctx ends or Close is
// called. It returns when the consumption has begun, or after ReadyTimeout without a connection;
// consumption then begins when there is one.
//
// Subscribe fails if the broker refuses the topology or closes the connection in response, for
// example because a queue with this name has another type, if the user lacks a right
// ([ErrForbidden]), if ctx has ended, or if the Subscriber is closed ([ErrClosed]).
//
// At the end, messages that no handler has received go back to the queue, handlers have
// CloseTimeout to ack or nack theirs, and the returned channel is closed. If the broker does not
// reply, it is closed after DialTimeout all the same, and unacked messages return to the queue when
// the broker replies, or when Close closes the connection.
func (s *Subscriber) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	if !s.begin() {
		return nil, ErrClosed
	}
	sub := s.newSubscription(ctx, topic)
	ch, err := sub.startConsuming()
	if err != nil {
		sub.cancel()
		sub.discardOpening()
		sub.ended()
		s.subscriptions.Done()
		return nil, err
	}
	go func() {
		defer s.subscriptions.Done()
		sub.run(ch)
	}()
	return sub.out, nil
}

// SubscribeInitialize declares the topology of topic. It waits up to ReadyTimeout for a connection
// and then up to DialTimeout for the broker.
func (s *Subscriber) SubscribeInitialize(topic string) error {
	if !s.begin() {
		return ErrClosed
	}
	defer s.subscriptions.Done()
	c, err := s.waitReady(s.closing)
	if err != nil {
		return fmt.Errorf("rabbit: declare topology of topic %q: %w", topic, err)
	}
	declared := make(chan error, 1)
	s.background.Go(func() {
		declared <- s.setUp(topic, func() error { return s.initialize(c, topic) })
	})
	select {
	case err := <-declared:
		return redact(err)
	case <-time.After(c.timeout):
		s.leave(c)
		return fmt.Errorf("rabbit: declare topology of topic %q: %w", topic, errNoReply)
	}
}

func (s *Subscriber) initialize(c *connection, topic string) error {
	sub := s.newSubscription(s.closing, topic)
	defer sub.cancel()
	c, end, err := s.connectionFor(sub.ctx, topic, c)
	if err != nil {
		return fmt.Errorf("rabbit: declare topology of topic %q: %w", topic, err)
	}
	defer end()
	return s.recordSetUp(topic, c.longRequest(func() error { return sub.declare(c) }))
}

// After begin returns true, the caller must call s.subscriptions.Done, for which Close waits.
func (s *Subscriber) begin() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return false
	}
	s.subscriptions.Add(1)
	return true
}

// Close stops consuming. Messages that no handler has received return to their queues. Close waits
// up to CloseTimeout for those in flight, sends their acks, closes the AMQP channels, which returns
// the rest to their queues, and closes the connection. Then the Go channels of all subscriptions
// are closed, and all goroutines have ended, even if the broker does not respond.
//
// If messages in flight were given back, Close returns an error that wraps [ErrGivenBack] and
// contains their number. A second call waits for the first, and returns the same error.
func (s *Subscriber) Close() error {
	s.closeOnce.Do(func() { s.closeErr = s.close() })
	return s.closeErr
}

func (s *Subscriber) close() error {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()

	s.startClosing()
	s.subscriptions.Wait()
	s.cancel()
	<-s.reconnectorDone
	s.background.Wait()
	s.instruments.unobserve()

	if n := s.givenBack.Load(); n > 0 {
		return fmt.Errorf("%w: %d messages that were in flight after CloseTimeout %v", ErrGivenBack, n, s.cfg.CloseTimeout)
	}
	return nil
}

func (s *Subscriber) serve(c *connection) (graceful bool, reason error) {
	s.mu.Lock()
	s.conn = c
	s.broadcast()
	s.mu.Unlock()
	select {
	case <-s.ctx.Done():
		return true, ErrClosed
	case reason, ok := <-c.closed:
		return false, c.closeReason(reason, ok)
	}
}

func (s *Subscriber) disconnected(reason error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.conn != nil {
		s.downSince = time.Now()
	}
	s.conn, s.down = nil, reason
	s.broadcast()
}

// leave closes a connection whose broker does not reply, if no subscription needs it and there is
// another node.
func (s *Subscriber) leave(c *connection) {
	if c.others && s.consuming.Load() == 0 {
		c.wire.Abort(errNoReply)
	}
}

// s.mu must be locked.
func (s *Subscriber) broadcast() {
	close(s.changed)
	s.changed = make(chan struct{})
}

// waitReady fails, with the reason, ReadyTimeout after the last connection was lost.
func (s *Subscriber) waitReady(ctx context.Context) (*connection, error) {
	s.mu.Lock()
	left := time.Until(s.downSince.Add(s.cfg.ReadyTimeout))
	s.mu.Unlock()
	limited, cancel := context.WithTimeout(ctx, max(left, time.Millisecond))
	defer cancel()
	if c := s.waitConnected(limited); c != nil {
		return c, nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return nil, errors.Join(ctx.Err(), s.down)
}

// waitConnected returns nil if ctx ends first.
func (s *Subscriber) waitConnected(ctx context.Context) *connection {
	for {
		s.mu.Lock()
		c, changed := s.conn, s.changed
		s.mu.Unlock()
		if c != nil && !c.amqp.IsClosed() {
			return c
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil
		}
	}
}
