package rabbit

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/rabbitmq/amqp091-go"
)

var _ message.Publisher = (*Publisher)(nil)

// Publisher publishes with confirms, and has many messages in flight. It is safe for
// concurrent use.
//
// Every message is mandatory and persistent, whatever the configuration or the marshaler says. A
// message counts as published only when the broker has confirmed it and has not returned it. With
// any marshaler, metadata never controls the broker; [Marshaler] lists the keys that would control
// it.
//
// The Publisher keeps its connection up in the background. It declares each exchange through
// Config.TopologyBuilder, once per connection, and again after a channel was closed.
//
// If the confirm of a message does not arrive in time, its outcome is unknown, and new messages go
// over another channel. The other unconfirmed messages of the old one keep their full
// ConfirmTimeout. A stuck queue has no other effect on other queues. But RabbitMQ itself stops
// reading from a connection that has sent some hundreds of messages to a queue that accepts none.
// Then the outcome of all messages of the connection is unknown, and the Publisher reconnects.
//
// A nack is a refusal. After three consecutive nacks for one destination, the next messages go over
// another channel: in a cluster, the old one may still use the lost leader of a queue. If the nacks
// continue, the channel changes again after a pause, which grows from a second to a minute. If no
// message was confirmed since the last change, the Publisher reconnects.
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

	nodes       *nodes
	instruments *instruments

	mu sync.Mutex // guards the fields below; it is never locked while waiting for the network

	session  *session          // the connection, or nil
	current  []*confirmChannel // channels for new messages
	channels []*confirmChannel // all channels that may still have unconfirmed messages
	spread   bool              // PublishUnordered was called, so there are several current channels
	turn     int               // number of messages that were spread
	down     error             // why there is no connection
	alone    map[string]bool   // exchanges whose declaration made the broker close a connection

	declarations int             // number of declarations that run, of all connections
	late         map[string]bool // exchanges whose declaration has had no answer in time, so that a node was left

	unreadySince time.Time // when it became impossible to send messages; zero while messages can be sent

	count, bytes int // number of unconfirmed messages, and their size in bytes

	changed chan struct{} // closed at the next change; only if waiting is true
	waiting bool

	failed    []outcome                 // outcomes of messages that were not sent; the confirm loop reports them
	idle      bool                      // the confirm loop has no work and waits for wake
	forbidden map[destination]forbidden // destinations that the broker refuses

	closing  bool // no more messages are sent
	stopping bool // count never increases again, because Close was called
	stopped  bool // the confirm loop has ended
}

// NewPublisher returns a Publisher for watermill-amqp's config. It reads Connection, Marshaler (or
// Marshaler{}), Exchange, TopologyBuilder (or watermill-amqp's default) and
// Publish.GenerateRoutingKey. Publish.Mandatory and Publish.ConfirmDelivery are always on. It
// ignores Publish.ChannelPoolSize, and refuses Publish.Transactional and Publish.Immediate.
//
// The Publisher connects in the background, and tries again after every error. Until then, Publish
// returns unavailable errors, which contain the reason. NewPublisher fails only for an invalid
// configuration, and names every invalid field.
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
		nodes:           newNodes(cfg.Nodes),
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
		dial:     p.dialSettings(true),
		pause:    retryPause{p.cfg.reconnectMin, p.cfg.reconnectMax},
		logger:   p.cfg.Logger,
		connects: p.instruments.connects,
	}
}

func (p *Publisher) dialSettings(confirmChannels bool) dialSettings {
	return dialSettings{
		confirmChannels: confirmChannels, dialTimeout: p.cfg.DialTimeout, writeTimeout: p.cfg.WriteTimeout, nodes: p.nodes,
	}
}

// Publish sends the messages to topic in their order, without waiting for confirms in between, and
// returns when it knows the outcome of each.
//
// It returns nil if every message was routed, persisted and confirmed. Otherwise the error contains
// a *PublishError for each other message, and each of its methods Refused, Unacceptable and
// Unavailable returns true only if it does for all of them.
func (p *Publisher) Publish(topic string, messages ...*message.Message) error {
	var (
		errs        = make([]error, len(messages))
		outstanding sync.WaitGroup
	)
	outstanding.Add(len(messages))
	for i, msg := range messages {
		p.PublishAsync(topic, msg, func(err error) {
			errs[i] = err
			outstanding.Done()
		})
	}
	outstanding.Wait()
	return join(errs)
}

// PublishAsync sends one message to topic. It returns when the message is in the write buffer, and
// may be used again. It blocks while the window is full or the exchange is being declared, and for
// up to ReadyTimeout without a connection, or while the broker blocks it. The messages of one
// goroutine are sent in order.
//
// PublishAsync calls done exactly once: with nil if the message was routed, persisted and
// confirmed, otherwise with a *PublishError. A single goroutine, never the caller's, calls done for
// all messages one after another, so done must not block, and must not call Publish, PublishAsync
// or Close. After Close, a new goroutine calls done.
func (p *Publisher) PublishAsync(topic string, msg *message.Message, done func(error)) {
	p.publish(&publication{id: msg.UUID, topic: topic, done: done}, msg)
}

// PublishUnordered is like [Publisher.PublishAsync], but the message may overtake unconfirmed ones:
// the Publisher uses several channels, which makes each message cheaper for the broker. A caller
// that needs an order sends the next message of it after the confirm, as the forwarder does for an
// ordering key.
func (p *Publisher) PublishUnordered(topic string, msg *message.Message, done func(error)) {
	p.publish(&publication{id: msg.UUID, topic: topic, done: done, unordered: true}, msg)
}

// Close stops sending, waits up to CloseTimeout for missing confirms, reports the remaining
// outcomes as unknown, and closes the connection. Then done was called for every message, and all
// goroutines have ended, even if the broker does not respond.
//
// If outcomes are unknown, Close returns an error that wraps [ErrUnknown] and contains their
// number. A second call waits for the first, and returns the same error.
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
	// They end with their connections, unless the code of a TopologyBuilder waits for something else.
	ended := time.NewTimer(closeWait)
	defer ended.Stop()
	for p.declarations > 0 && p.wait(ended.C) {
	}
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

// wait reports whether the state has changed before a value arrives on limit. p.mu must be locked,
// and is unlocked meanwhile.
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

// Call updateReadiness with p.mu locked, after every change that may affect unready.
func (p *Publisher) updateReadiness() {
	switch {
	case p.unready() == nil:
		p.unreadySince = time.Time{}
	case p.unreadySince.IsZero():
		p.unreadySince = time.Now()
	}
	p.broadcast()
}

// p.mu must be locked.
func (p *Publisher) broadcast() {
	if p.waiting {
		p.waiting = false
		close(p.changed)
		p.changed = make(chan struct{})
	}
}

// p.mu must be locked.
func (p *Publisher) wakeConfirmLoop() {
	p.idle = false
	notify(p.wake)
}

func notify(signal chan<- struct{}) {
	select {
	case signal <- struct{}{}:
	default:
	}
}

// Destination returns a name for the place to which messages are published, without credentials:
// the broker's host and port, the virtual host, and the exchange and the routing key of "{topic}".
//
// Two publishers with the same name publish to the same queues, unless a host name refers to
// different brokers. The host is that of the URI, whichever of Nodes the Publisher is connected to,
// and even if a Dial function connects elsewhere. A forwarder stores and logs the name, see
// forwarder.Config.Destination.
func (p *Publisher) Destination() string {
	uri, _ := amqp091.ParseURI(p.config.Connection.AmqpURI) // NewPublisher has refused an invalid URI
	return fmt.Sprintf("rabbitmq %s:%d vhost %+q exchange %s key %s",
		strings.ToLower(uri.Host), uri.Port, uri.Vhost, example(p.config.Exchange.GenerateName), example(p.config.Publish.GenerateRoutingKey))
}

func example(generate func(topic string) string) (name string) {
	defer func() {
		if recover() != nil {
			name = "unknown" // generate may accept only certain topics
		}
	}()
	return fmt.Sprintf("%+q", generate("{topic}"))
}
