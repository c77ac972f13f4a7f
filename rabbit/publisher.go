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

// Publisher publishes with confirms, many messages in flight. It is safe for
// concurrent use.
//
// Every message is mandatory and persistent, whatever the configuration or the
// marshaler says, and counts as published only when the broker has confirmed
// it and not returned it. Metadata never steers the broker, whichever
// marshaler is configured (see SteeringHeader).
//
// The connection is kept up in the background. Exchanges are declared through
// Config.TopologyBuilder, once per connection and again after a channel was
// closed by the broker.
//
// A message whose confirm is overdue is unknown, and its channel takes no new
// messages from then on. What else is outstanding there keeps its own full
// ConfirmTimeout and is confirmed if its confirm comes, so a queue that is
// stuck costs the others a change of channel and nothing else. (RabbitMQ itself
// stops reading from a connection that has sent some hundreds of messages to a
// queue that does not take them; then all are unknown, and the connection is
// made anew.)
//
// A nack is a refusal, and after three in a row to one destination the next
// messages go over another channel: one that has lost sight of a queue's leader
// in a cluster would nack for ever. That is repeated after a pause that grows from
// a second to a minute, with a new connection if nothing at all was confirmed
// meanwhile.
type Publisher struct {
	config amqp.Config
	cfg    PublisherConfig

	ctx    context.Context // ends when Close has waited for confirms
	cancel context.CancelFunc

	closeOnce sync.Once
	closeErr  error

	attend  chan struct{} // asks the keeper to look for a channel
	kept    chan struct{} // closed when the keeper has ended
	wake    chan struct{} // wakes the settler
	settled chan struct{} // closed when the settler has ended

	instruments *instruments

	mu sync.Mutex // guards what follows, and is never held during I/O

	session *session // the connection, or nil
	lane    *lane    // where to publish, or nil
	lanes   []*lane  // everywhere that something may be outstanding
	down    error    // why there is no connection

	unreadySince time.Time // of a time when nothing can be sent, else zero

	count, bytes int // outstanding

	changed chan struct{} // closed at the next change, if anybody waits for one
	waited  bool

	failed   []verdict // to be reported by the settler
	dozing   bool      // the settler waits for nothing but wake
	closing  bool      // nothing is sent any more
	stopping bool      // nothing will be outstanding any more
	stopped  bool      // the settler reports no more
}

// NewPublisher takes watermill-amqp's config; what it reads there is
// Connection, Marshaler (nil is Marshaler{}), Exchange, TopologyBuilder (nil is
// the default one) and Publish.GenerateRoutingKey. Publish.Mandatory and
// Publish.ConfirmDelivery are always on and Publish.ChannelPoolSize has no
// meaning here; Publish.Transactional and Publish.Immediate are refused.
//
// It does not need the broker: it connects in the background and keeps trying,
// whatever goes wrong. Until there is a connection, messages are reported as
// unavailable, with what stands in the way. An error of NewPublisher is one of
// the configuration, and names every field that is wrong.
func NewPublisher(config amqp.Config, cfg PublisherConfig) (*Publisher, error) {
	config, cfg = withDefaults(config, cfg)
	if err := validate(config, cfg); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	p := &Publisher{
		config:  config,
		cfg:     cfg,
		ctx:     ctx,
		cancel:  cancel,
		attend:  make(chan struct{}, 1),
		kept:    make(chan struct{}),
		wake:    make(chan struct{}, 1),
		settled: make(chan struct{}),
		changed: make(chan struct{}),
		down:    errConnecting,
	}
	p.instruments = newInstruments(p)
	p.noteReadiness()
	go func() {
		defer close(p.kept)
		p.keeper().keep(p)
	}()
	go p.settle()
	return p, nil
}

func (p *Publisher) keeper() *keeper {
	return &keeper{
		ctx:       p.ctx,
		config:    p.config.Connection,
		publishes: true,
		pace:      pace{p.cfg.ReconnectMin, p.cfg.ReconnectMax},
		dial:      p.cfg.DialTimeout,
		write:     p.cfg.WriteTimeout,
		logger:    p.cfg.Logger,
		connects:  p.instruments.connects,
	}
}

// Publish sends the messages to topic, in order and without waiting for one
// before the next, and returns when the fate of all is known.
//
// It returns nil when every message was routed, persisted and confirmed. Else
// the error holds a *PublishError for every message that was not; its methods
// Refused, Unacceptable and Unavailable are true if they are for all of these.
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

// PublishAsync sends one message to topic and returns as soon as it is on its
// way, and no longer needs the message. It blocks while the window is full, while
// the exchange is declared, and while there is no connection or the broker
// blocks it, for ReadyTimeout at most. Messages that one goroutine sends are
// sent in order.
//
// done is called exactly once: with nil when the message was routed, persisted
// and confirmed, else with a *PublishError. It is never called from within
// PublishAsync. All calls come one after another from a single goroutine (for
// messages sent after Close, from one of their own), so done must not block,
// publish or close.
func (p *Publisher) PublishAsync(topic string, msg *message.Message, done func(error)) {
	p.publish(topic, msg, done)
}

// Close sends nothing more, waits for the outstanding confirms for up to
// CloseTimeout, reports the rest as unknown, and closes the connection. When it
// returns, done was called for everything that was sent, and no goroutine is
// left. It does not hang on a broker that does not answer.
//
// The error says how many messages were left unknown, if any. Calling Close
// again waits for the first call and returns the same.
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
	<-p.kept

	p.mu.Lock()
	p.stopping = true
	p.wakeSettler()
	p.mu.Unlock()
	<-p.settled
	p.instruments.unobserve()

	if unknown > 0 {
		return fmt.Errorf("%w of %d messages that were outstanding after CloseTimeout %v",
			ErrUnknown, unknown, p.cfg.CloseTimeout)
	}
	return nil
}

// wait gives up the lock until something has changed, or the time is up.
func (p *Publisher) wait(limit <-chan time.Time) (changed bool) {
	change := p.changed
	p.waited = true
	p.mu.Unlock()
	defer p.mu.Lock()
	select {
	case <-change:
		return true
	case <-limit:
		return false
	}
}

// noteReadiness is to be called with the lock held after a change of whether
// messages can be sent.
func (p *Publisher) noteReadiness() {
	switch {
	case p.unready() == nil:
		p.unreadySince = time.Time{}
	case p.unreadySince.IsZero():
		p.unreadySince = time.Now()
	}
	p.broadcast()
}

// broadcast tells those who wait that something has changed. The lock is held.
func (p *Publisher) broadcast() {
	if p.waited {
		p.waited = false
		close(p.changed)
		p.changed = make(chan struct{})
	}
}

// wakeSettler is called with the lock held.
func (p *Publisher) wakeSettler() {
	p.dozing = false
	notify(p.wake)
}

// notify sends a signal of which one is as good as many.
func notify(signal chan<- struct{}) {
	select {
	case signal <- struct{}{}:
	default:
	}
}
