package once

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/dedup"
	"github.com/watermill-once/once/durable"
	"github.com/watermill-once/once/eventbus"
	"github.com/watermill-once/once/internal/usercode"
	"github.com/watermill-once/once/operate"
	"github.com/watermill-once/once/operate/quarantine"
	"github.com/watermill-once/once/outbox"
	"github.com/watermill-once/once/poison"
	"github.com/watermill-once/once/retry"
	"github.com/watermill-once/once/sequence"
)

// HandlerFunc handles a message in a transaction. The writes of the function through tx and the
// messages that it returns take effect together, once per message id, or not at all. A returned
// message goes to the topic in its "once_topic" metadata, see [To].
//
// The handler must write only through tx. Writes through a *sql.DB remain if the attempt fails, and
// the next attempt repeats them; oncetest.Run detects this in your tests.
//
// The handler must not commit or roll back tx. If it returns an error or panics, tx is rolled back,
// and the call counts as a failed attempt; see [retry.Permanent] and [retry.After].
type HandlerFunc func(ctx context.Context, tx *sql.Tx, msg *message.Message) ([]*message.Message, error)

// Consumer adds handlers with the whole chain to a router: quarantine, retries and
// inbox. If configured, it also adds durable storage and the comparison of versions.
type Consumer struct {
	durable    []string
	storage    *durable.Storage
	once       *dedup.Inbox
	retries    *retry.Retries
	poison     *poison.Store
	quarantine *quarantine.Entries
	sequence   *sequence.Resequencer // may be nil
	handlers   *handlers
	marshaler  eventbus.Marshaler // of the events of Handle

	batchSize, batchInFlight int // see chain.Part
}

// NewConsumer returns a Consumer whose handlers keep their state in db. If config is invalid, the
// error names the invalid fields. NewConsumer does not connect to db. The tables must exist when a
// router with handlers of the Consumer starts, see schema.Up. When the router starts, Router.Run
// makes the checks of [Plugin], and returns all mistakes in one error.
func NewConsumer(db *sql.DB, config ConsumerConfig) (*Consumer, error) {
	config, err := config.withSharedDefaults()
	if err != nil {
		return nil, err
	}
	// The inbox must remember a message for as long as retry may run it again.
	config.Dedup.MaxDuplicateAge = max(
		cmp.Or(config.Dedup.MaxDuplicateAge, usercode.DefaultMaxDuplicateAge), config.Retry.LongestDelay())
	if config.Sequence != nil && config.Sequence.Window == 0 {
		config.Sequence.Window = windowFor(config.Retry.LongestDelay())
	}
	storage, err := durable.New(db, config.Durable)
	errs := []error{err}
	if db == nil {
		errs = []error{errors.New("once: db is nil"), err}
	}
	if n := config.Durable.TenantConcurrency; n != 0 && len(config.DurableConsumers) == 0 {
		errs = append(errs, fmt.Errorf("once: Durable.TenantConcurrency is %d, but DurableConsumers is empty: "+
			"this limit needs a durable consumer, whose messages are stored before they are handled", n))
	}
	if slices.Contains(config.DurableConsumers, "") {
		errs = append(errs, errors.New("once: DurableConsumers has an empty name"))
	}
	if config.Dedup.Consumer != "" {
		// One name for all handlers would make them skip each other's messages.
		errs = append(errs, errors.New("once: Dedup.Consumer is set: leave it empty, each handler has the consumer name that it is added with"))
	}
	once, err := dedup.New(db, config.Dedup)
	errs = append(errs, err)
	retries, err := retry.New(db, config.Retry)
	errs = append(errs, err)
	store, err := poison.New(db, config.Poison)
	errs = append(errs, err)
	consumer := &Consumer{
		durable: slices.Clone(config.DurableConsumers), storage: storage, once: once, retries: retries, poison: store,
		marshaler: marshalerOf(config.Marshaler),
	}
	if config.Sequence != nil {
		consumer.sequence, err = sequence.New(*config.Sequence)
		errs = append(errs, err)
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	consumer.quarantine, err = quarantine.New(db, operate.Config{Schema: config.Poison.Schema, MeterProvider: config.Poison.MeterProvider})
	if err != nil {
		return nil, err
	}
	consumer.batchSize, consumer.batchInFlight = once.Part().BatchSize, once.Part().BatchInFlight
	parts := []Part{once, retries, store}
	if len(config.DurableConsumers) > 0 {
		parts = append(parts, storage)
	}
	if consumer.sequence != nil {
		parts = append(parts, consumer.sequence)
	}
	consumer.handlers = newHandlers(config, parts)
	return consumer, nil
}

// AddHandler adds a handler to router, which receives the messages of topic from sub. consumer is
// the name of the handler and of the consumer. The inbox remembers messages under this name, so
// never change it: under a new name, every message counts as new.
//
// sub can be any Watermill subscriber, such as the subscriber of package
// rabbit or embedded. Middlewares of the router wrap the whole chain. AddHandler panics
// if handle is nil, or if router already has a handler with this name.
func (c *Consumer) AddHandler(
	router *message.Router, consumer, topic string, sub message.Subscriber, handle HandlerFunc,
) *message.Handler {
	mustHandle(consumer, handle != nil)
	return c.add(router, consumer, topic, c.subscriber(consumer, sub), c.once.Middleware(c.inOrder(inTx(handle))))
}

// AddHandlerInBatches is like [Consumer.AddHandler], but up to ConsumerConfig.Dedup.Batch.Size
// messages in flight are committed together, see [dedup.Inbox.BatchMiddleware]. A rabbit.Subscriber
// whose InFlight is not configured has enough for full batches; if it is smaller than a batch,
// Router.Run returns an error.
func (c *Consumer) AddHandlerInBatches(
	router *message.Router, consumer, topic string, sub message.Subscriber, handle HandlerFunc,
) *message.Handler {
	mustHandle(consumer, handle != nil)
	return c.addBatches(router, consumer, topic, sub, c.once.BatchMiddleware(c.inOrder(inTx(handle))))
}

// AddBatchHandler is like [Consumer.AddHandlerInBatches], but the handler gets all messages of a
// batch in one call, to write them with few statements, see [dedup.BatchHandlerFunc].
// [dedup.CausedBy] links a produced message to its cause.
//
// AddBatchHandler panics if ConsumerConfig.Sequence is set, because versions are compared message
// by message.
func (c *Consumer) AddBatchHandler(
	router *message.Router, consumer, topic string, sub message.Subscriber, handle dedup.BatchHandlerFunc,
) *message.Handler {
	if c.sequence != nil {
		panic("once: AddBatchHandler cannot be used with ConsumerConfig.Sequence: use AddHandlerInBatches")
	}
	mustHandle(consumer, handle != nil)
	return c.addBatches(router, consumer, topic, sub, c.once.BatchHandler(handle))
}

// Subscriber prepares the handler of router with the given name for the whole chain, and returns
// its subscriber. It is for components that add handlers to a router themselves, such as the
// processors of Watermill's cqrs component: call it in SubscriberConstructor with the name of the
// handler or of the group, once for each. consumer is also the name of the consumer, as for
// [Consumer.AddHandler].
//
// The handler finds its transaction with [dedup.TxFromContext]. The middlewares of router and of
// the handler wrap the whole chain; those of inside run in the transaction, such as
// eventbus.KnownEvents. If router has no handler with this name when it starts, or if another
// handler has the returned subscriber, Router.Run returns an error.
func (c *Consumer) Subscriber(
	router *message.Router, consumer string, sub message.Subscriber, inside ...message.HandlerMiddleware,
) message.Subscriber {
	return c.handlers.addForeign(router, consumer, c.subscriber(consumer, sub), func(h message.HandlerFunc) message.HandlerFunc {
		for _, middleware := range slices.Backward(inside) {
			h = middleware(h)
		}
		return c.chain(c.once.Middleware(c.inOrder(h)))
	})
}

// mustHandle panics at the start. Otherwise every message would go to quarantine later.
func mustHandle(consumer string, set bool) {
	if !set {
		panic(fmt.Sprintf("once: the handler of %q is nil", consumer))
	}
}

// inOrder compares versions before it calls h, if ConsumerConfig.Sequence is set.
func (c *Consumer) inOrder(h message.HandlerFunc) message.HandlerFunc {
	if c.sequence == nil {
		return h
	}
	return c.sequence.Middleware(h)
}

func (c *Consumer) subscriber(consumer string, sub message.Subscriber) message.Subscriber {
	if slices.Contains(c.durable, consumer) {
		sub = c.storage.Subscriber(sub)
	}
	return c.retries.Subscriber(consumer, sub)
}

func (c *Consumer) addBatches(
	router *message.Router, consumer, topic string, sub message.Subscriber, deduplicated message.HandlerFunc,
) *message.Handler {
	return c.add(router, consumer, topic, &batchSubscriber{c.subscriber(consumer, sub), c.batchSize, c.batchInFlight}, deduplicated)
}

// deduplicated is the handler with the inbox around it.
func (c *Consumer) chain(deduplicated message.HandlerFunc) message.HandlerFunc {
	return c.poison.Middleware(c.retries.Middleware(deduplicated))
}

func (c *Consumer) add(
	router *message.Router, consumer, topic string, sub message.Subscriber, deduplicated message.HandlerFunc,
) *message.Handler {
	chain := c.chain(deduplicated)
	sub = c.handlers.add(router, consumer, sub)
	return router.AddConsumerHandler(consumer, topic, sub,
		func(msg *message.Message) error {
			_, err := chain(msg)
			return err
		})
}

func inTx(handle HandlerFunc) message.HandlerFunc {
	return func(msg *message.Message) ([]*message.Message, error) {
		tx, ok := dedup.TxFromContext(msg.Context())
		if !ok {
			return nil, errors.New("once: the handler was called outside of its transaction")
		}
		return handle(msg.Context(), tx, msg)
	}
}

// Run removes expired rows until ctx ends, see [dedup.Inbox.Run]. A router with a handler of this
// Consumer does it itself: call Run only in a process without one, see dedup.Config.SweptElsewhere.
func (c *Consumer) Run(ctx context.Context) error { return c.once.Run(ctx) }

// Quarantine returns the quarantine, to list, replay, edit or discard the messages that the
// handlers could not handle, with the defaults of operate.Config. For others, call quarantine.New.
func (c *Consumer) Quarantine() *quarantine.Entries { return c.quarantine }

// To sets the topic of a message that a handler returns, and returns the message. To
// send a message to several topics, return a copy for each of them: To(topic, msg.Copy()).
func To(topic string, msg *message.Message) *message.Message {
	outbox.SetTopic(msg, topic)
	return msg
}
