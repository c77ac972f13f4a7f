package rabbit

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
)

var _ message.Publisher = (*Publisher)(nil)

// Publisher publishes with confirms, and has many messages in flight. It is safe for
// concurrent use.
//
// The Publisher makes every message mandatory and persistent, whatever the
// configuration or the marshaler says. A message counts as published only when the
// broker has confirmed it and has not returned it. Metadata never controls the broker,
// with any marshaler; [Marshaler] lists the keys.
//
// The Publisher keeps its connection up in the background. It declares exchanges
// through Config.TopologyBuilder, once per connection, and again after the broker has
// closed a channel.
//
// If the confirm of a message is overdue, the outcome of the message is unknown. The
// Publisher then sends new messages over another channel. The other unconfirmed
// messages of the old channel keep their full ConfirmTimeout and can still be
// confirmed. So if one queue is stuck, the only effect on other queues is the change of
// channel. If a queue does not accept messages, RabbitMQ itself stops reading from a
// connection that has sent some hundreds of messages to that queue. Then the outcome of
// all messages of the connection is unknown, and the Publisher reconnects.
//
// A nack is a refusal. After three nacks in a row for one destination, the Publisher
// sends the next messages over another channel, because in a cluster a channel that has
// lost the leader of a queue nacks for ever. It changes the channel again after a
// pause, which grows from a second to a minute. It reconnects if no message was
// confirmed since the last change.
type Publisher struct {
	config amqp.Config
	cfg    PublisherConfig

	ctx    context.Context // ends when Close has waited for confirms
	cancel context.CancelFunc

	closeOnce sync.Once
	closeErr  error

	reopen          chan struct{} // asks serve to open a confirm channel
	reconnectorDone chan struct{} // closed when the reconnector has ended
	wake            chan struct{} // wakes the confirm loop
	confirmsDone    chan struct{} // closed when the confirm loop has ended

	instruments *instruments

	mu sync.Mutex // guards the fields below; never held while waiting for the network

	session  *session          // the connection, or nil
	channel  *confirmChannel   // channel for new messages, or nil
	channels []*confirmChannel // all channels that may have unconfirmed messages
	down     error             // why there is no connection

	unreadySince time.Time // since when nothing can be sent, or zero

	count, bytes int // number and size of the unconfirmed messages

	changed chan struct{} // closed at the next change if waiting is set
	waiting bool

	failed   []outcome // outcomes that the confirm loop must report
	idle     bool      // the confirm loop waits only for wake
	closing  bool      // no more messages are sent
	stopping bool      // no more messages are added to count
	stopped  bool      // the confirm loop has ended
}

// NewPublisher returns a Publisher for watermill-amqp's config. It reads these
// fields: Connection, Marshaler (nil is Marshaler{}), Exchange, TopologyBuilder
// (nil is watermill-amqp's default) and Publish.GenerateRoutingKey. It always
// turns on Publish.Mandatory and Publish.ConfirmDelivery, ignores
// Publish.ChannelPoolSize, and refuses Publish.Transactional and
// Publish.Immediate.
//
// NewPublisher does not need the broker: the Publisher connects in the background
// and keeps trying after every error. Until it is connected, messages are
// unavailable, and their errors contain the reason. NewPublisher fails only if
// the configuration is invalid; the error names every invalid field.
func NewPublisher(config amqp.Config, cfg PublisherConfig) (*Publisher, error) {
	config, cfg = cfg.withDefaults(config)
	if err := cfg.validate(config); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	p := &Publisher{
		config:          config,
		cfg:             cfg,
		ctx:             ctx,
		cancel:          cancel,
		reopen:          make(chan struct{}, 1),
		reconnectorDone: make(chan struct{}),
		wake:            make(chan struct{}, 1),
		confirmsDone:    make(chan struct{}),
		changed:         make(chan struct{}),
		down:            errConnecting,
	}
	p.instruments = newInstruments(p)
	p.updateReadiness()
	go func() {
		defer close(p.reconnectorDone)
		p.reconnector().run(p)
	}()
	go p.processConfirms()
	return p, nil
}

func (p *Publisher) reconnector() *reconnector {
	return &reconnector{
		ctx:      p.ctx,
		config:   p.config.Connection,
		dial:     dialSettings{confirmChannels: true, dialTimeout: p.cfg.DialTimeout, writeTimeout: p.cfg.WriteTimeout},
		pause:    retryPause{p.cfg.ReconnectMin, p.cfg.ReconnectMax},
		logger:   p.cfg.Logger,
		connects: p.instruments.connects,
	}
}

// Publish sends the messages to topic in order. It does not wait for the confirm of a
// message before it sends the next one. It returns when it knows the outcome of every
// message.
//
// Publish returns nil if every message was routed, persisted and confirmed. Otherwise
// the error contains a *PublishError for every other message. Its methods Refused,
// Unacceptable and Unavailable return true if they return true for all of these errors.
func (p *Publisher) Publish(topic string, messages ...*message.Message) error {
	var (
		errs        = make([]error, len(messages))
		outstanding sync.WaitGroup
	)
	outstanding.Add(len(messages))
	for i, msg := range messages {
		p.publish(topic, msg, func(err error) {
			errs[i] = err
			outstanding.Done()
		})
	}
	outstanding.Wait()
	return join(errs)
}

// PublishAsync sends one message to topic. It returns when the message is in the write
// buffer; the caller may then reuse the message. It blocks while the window is full or
// the exchange is being declared. If there is no connection, or the broker blocks the
// connection, it blocks for up to ReadyTimeout. The messages of one goroutine are sent
// in order.
//
// PublishAsync calls done exactly once: with nil if the message was routed, persisted
// and confirmed, otherwise with a *PublishError. It never calls done on the caller's
// goroutine. A single goroutine calls done for all messages, one after the other. So
// done must not block, and must not call Publish, PublishAsync or Close. For a message
// that is sent after Close, done is called on a new goroutine.
func (p *Publisher) PublishAsync(topic string, msg *message.Message, done func(error)) {
	p.publish(topic, msg, done)
}

// Close stops sending, waits up to CloseTimeout for confirms that are missing, reports
// the outcome of the other messages as unknown, and closes the connection. When it
// returns, done was called for every message that was sent, and all goroutines have
// ended. Close does not hang if the broker does not respond.
//
// If the outcome of messages is unknown, the error is [ErrUnknown] with their number. A
// second call of Close waits for the first one and returns the same error.
func (p *Publisher) Close() error {
	p.closeOnce.Do(func() { p.closeErr = p.close() })
	return p.closeErr
}

func (p *Publisher) close() error {
	deadline := time.NewTimer(p.cfg.CloseTimeout)
	defer deadline.Stop()

	p.mu.Lock()
	p.closing = true
	p.broadcast()
	for p.count > 0 && p.wait(deadline.C) {
	}
	unknown := p.count
	p.mu.Unlock()

	p.cancel()
	<-p.reconnectorDone

	p.mu.Lock()
	p.stopping = true
	p.wakeConfirmLoop()
	p.mu.Unlock()
	<-p.confirmsDone
	p.instruments.unobserve()

	if unknown > 0 {
		return fmt.Errorf("%w of %d messages that were not confirmed within CloseTimeout %v",
			ErrUnknown, unknown, p.cfg.CloseTimeout)
	}
	return nil
}

// wait unlocks p.mu, and waits until the state has changed or limit fires. It reports
// whether the state has changed.
func (p *Publisher) wait(limit <-chan time.Time) (changed bool) {
	change := p.changed
	p.waiting = true
	p.mu.Unlock()
	defer p.mu.Lock()
	select {
	case <-change:
		return true
	case <-limit:
		return false
	}
}

// updateReadiness records since when nothing can be sent. Call it after every change
// that may change the result of unready. p.mu must be held.
func (p *Publisher) updateReadiness() {
	switch {
	case p.unready() == nil:
		p.unreadySince = time.Time{}
	case p.unreadySince.IsZero():
		p.unreadySince = time.Now()
	}
	p.broadcast()
}

// broadcast wakes all callers of wait. p.mu must be held.
func (p *Publisher) broadcast() {
	if p.waiting {
		p.waiting = false
		close(p.changed)
		p.changed = make(chan struct{})
	}
}

// wakeConfirmLoop wakes the confirm loop. p.mu must be held.
func (p *Publisher) wakeConfirmLoop() {
	p.idle = false
	notify(p.wake)
}

// notify sends a signal. If a signal is pending, it does nothing. It does not block.
func notify(signal chan<- struct{}) {
	select {
	case signal <- struct{}{}:
	default:
	}
}
