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
	"github.com/watermill-once/once/internal/defaults"
	"github.com/watermill-once/once/outbox"
	"github.com/watermill-once/once/poison"
	"github.com/watermill-once/once/retry"
	"github.com/watermill-once/once/sequence"
)

// HandlerFunc handles a message in a transaction. Its writes through tx and the
// messages that it returns take effect together, once per message id, or not at
// all. A returned message goes to the topic in its "once_topic" metadata, see [To].
//
// The handler must write through tx only. Writes through a *sql.DB remain if the
// attempt fails, and the next attempt repeats them; oncetest.Run detects this in
// your tests.
//
// The handler must not commit or roll back tx. An error or a panic rolls back and
// counts as a failed attempt; see [retry.Permanent] and [retry.After].
type HandlerFunc func(ctx context.Context, tx *sql.Tx, msg *message.Message) ([]*message.Message, error)

// Consumer adds handlers with the whole chain to a router: quarantine, retries,
// inbox, and on request durable storage and the comparison of versions.
type Consumer struct {
	durable    []string
	storage    *durable.Storage
	once       *dedup.Inbox
	retries    *retry.Retries
	quarantine *poison.Quarantine
	sequence   *sequence.Resequencer // or nil
	handlers   *handlers

	batchSize, batchInFlight int // see start.Part
}

// NewConsumer returns a Consumer whose handlers keep their state in db. It returns
// an error that names the invalid fields of config; it does not connect to db. The
// tables must exist when a router with its handlers starts, see schema.Up. Then
// Router.Run makes the checks of [Plugin], and returns all mistakes in one error.
func NewConsumer(db *sql.DB, config ConsumerConfig) (*Consumer, error) {
	config, err := config.withSharedDefaults()
	if err != nil {
		return nil, err
	}
	// The inbox must remember a message for as long as retry may run it again.
	config.Dedup.MaxDuplicateAge = max(
		cmp.Or(config.Dedup.MaxDuplicateAge, defaults.MaxDuplicateAge), config.Retry.LongestDelay())
	if config.Sequence != nil && config.Sequence.Window == 0 {
		config.Sequence.Window = windowFor(config.Retry.LongestDelay())
	}
	storage, err := durable.New(db, config.Durable)
	errs := []error{err}
	if db == nil {
		errs = []error{errors.New("once: db is nil"), err}
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
	quarantine, err := poison.New(db, config.Poison)
	errs = append(errs, err)
	consumer := &Consumer{
		durable: slices.Clone(config.DurableConsumers), storage: storage, once: once, retries: retries, quarantine: quarantine,
	}
	if config.Sequence != nil {
		consumer.sequence, err = sequence.New(*config.Sequence)
		errs = append(errs, err)
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	consumer.batchSize, consumer.batchInFlight = once.Part().BatchSize, once.Part().BatchInFlight
	parts := []Part{once, retries, quarantine}
	if len(config.DurableConsumers) > 0 {
		parts = append(parts, storage)
	}
	if consumer.sequence != nil {
		parts = append(parts, consumer.sequence)
	}
	consumer.handlers = newHandlers(config, parts)
	return consumer, nil
}

// AddHandler adds a handler to router that consumes topic from sub. consumer is the
// name of the handler and of the consumer: its messages are remembered under it, so
// never change it. Under a new name every message counts as new.
//
// sub is the subscriber of the transport: any Watermill subscriber, such as those of
// the packages rabbit and embedded. Middlewares of the router wrap the whole chain.
// AddHandler panics if handle is nil, or if router has a handler with that name.
func (c *Consumer) AddHandler(
	router *message.Router, consumer, topic string, sub message.Subscriber, handle HandlerFunc,
) *message.Handler {
	mustHandle(consumer, handle != nil)
	return c.add(router, consumer, topic, c.subscriber(consumer, sub), c.once.Middleware(c.inOrder(inTx(handle))))
}

// AddHandlerInBatches is [Consumer.AddHandler] for a handler whose messages may
// share a transaction: up to ConsumerConfig.Dedup.Batch.Size messages in flight are
// committed at once, see [dedup.Inbox.BatchMiddleware]. If sub is a rabbit.Subscriber
// without a configured InFlight, it has enough messages in flight for full batches. If
// InFlight is smaller than a batch, Router.Run returns an error.
func (c *Consumer) AddHandlerInBatches(
	router *message.Router, consumer, topic string, sub message.Subscriber, handle HandlerFunc,
) *message.Handler {
	mustHandle(consumer, handle != nil)
	return c.addBatches(router, consumer, topic, sub, c.once.BatchMiddleware(c.inOrder(inTx(handle))))
}

// AddBatchHandler is [Consumer.AddHandlerInBatches] for a handler that receives all
// messages of a batch in one call, so that it can write them with few statements,
// see [dedup.BatchHandlerFunc]. Call [dedup.CausedBy] to link a produced message to
// the message that caused it.
//
// AddBatchHandler panics if ConsumerConfig.Sequence is set, because versions are
// compared message by message.
func (c *Consumer) AddBatchHandler(
	router *message.Router, consumer, topic string, sub message.Subscriber, handle dedup.BatchHandlerFunc,
) *message.Handler {
	if c.sequence != nil {
		panic("once: AddBatchHandler cannot be used with ConsumerConfig.Sequence: use AddHandlerInBatches")
	}
	mustHandle(consumer, handle != nil)
	return c.addBatches(router, consumer, topic, sub, c.once.BatchHandler(handle))
}

// mustHandle panics while the service starts if a handler is nil. Otherwise every
// message would end in quarantine later.
func mustHandle(consumer string, set bool) {
	if !set {
		panic(fmt.Sprintf("once: the handler of %q is nil", consumer))
	}
}

// inOrder wraps a handler in the comparison of versions, if Sequence is set.
func (c *Consumer) inOrder(h message.HandlerFunc) message.HandlerFunc {
	if c.sequence == nil {
		return h
	}
	return c.sequence.Middleware(h)
}

// subscriber returns the subscriber of a handler, which also delivers parked messages.
func (c *Consumer) subscriber(consumer string, sub message.Subscriber) message.Subscriber {
	if slices.Contains(c.durable, consumer) {
		sub = c.storage.Subscriber(sub)
	}
	return c.retries.Subscriber(consumer, sub)
}

// addBatches is like add for a handler with batches.
func (c *Consumer) addBatches(
	router *message.Router, consumer, topic string, sub message.Subscriber, once message.HandlerFunc,
) *message.Handler {
	return c.add(router, consumer, topic, &batchSubscriber{c.subscriber(consumer, sub), c.batchSize, c.batchInFlight}, once)
}

// add wraps a handler, which includes the inbox, in retry and poison, and adds it to
// router.
func (c *Consumer) add(
	router *message.Router, consumer, topic string, sub message.Subscriber, once message.HandlerFunc,
) *message.Handler {
	chain := c.quarantine.Middleware(c.retries.Middleware(once))
	sub = c.handlers.add(router, consumer, sub)
	return router.AddConsumerHandler(consumer, topic, sub,
		func(msg *message.Message) error {
			_, err := chain(msg)
			return err
		})
}

// inTx calls handle with the transaction of the inbox.
func inTx(handle HandlerFunc) message.HandlerFunc {
	return func(msg *message.Message) ([]*message.Message, error) {
		tx, ok := dedup.TxFromContext(msg.Context())
		if !ok {
			return nil, errors.New("once: the handler was called outside of its transaction")
		}
		return handle(msg.Context(), tx, msg)
	}
}

// Run removes expired rows until ctx ends, see [dedup.Inbox.Run]. You need it only in
// a process without a router, see dedup.Config.SweptElsewhere: a router with a
// handler of this Consumer calls it while the router runs.
func (c *Consumer) Run(ctx context.Context) error { return c.once.Run(ctx) }

// Quarantine returns the quarantine, to list, replay, edit or discard the messages
// that were given up on.
func (c *Consumer) Quarantine() *poison.Quarantine { return c.quarantine }

// To sets the topic of a message that a handler returns, and returns the message.
func To(topic string, msg *message.Message) *message.Message {
	outbox.SetTopic(msg, topic)
	return msg
}
