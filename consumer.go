package once

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"

	"github.com/watermill-once/once/dedup"
	"github.com/watermill-once/once/durable"
	"github.com/watermill-once/once/outbox"
	"github.com/watermill-once/once/poison"
	"github.com/watermill-once/once/retry"
	"github.com/watermill-once/once/schema"
	"github.com/watermill-once/once/sequence"
)

// HandlerFunc handles a message inside its transaction. What it writes through
// tx and the messages it returns take effect together, once per message id, or
// not at all. A returned message goes to the topic in its "once_topic"
// metadata, see [To].
//
// It must write through tx alone. What it writes through a *sql.DB stays when the
// attempt fails, and is written again by the next one; oncetest.Run finds that in
// a test of yours.
//
// It must not end tx. An error, or a panic, rolls back and is an attempt that
// failed; see [retry.Permanent] and [retry.After].
type HandlerFunc func(ctx context.Context, tx *sql.Tx, msg *message.Message) ([]*message.Message, error)

// BatchHandlerFunc handles several messages inside one transaction, see
// [dedup.BatchHandlerFunc].
type BatchHandlerFunc = dedup.BatchHandlerFunc

// ConsumerConfig is what a [Consumer] can be told. The zero value is ready for
// use. Schema, Logger and the providers are given on to the parts that do not have
// their own.
type ConsumerConfig struct {
	// Schema says which tables, in which kind of database. Defaults to
	// PostgreSQL and the prefix "once_".
	Schema schema.Config

	// DurableConsumers are the names of consumers whose messages are stored and acked
	// first, and handled from there, as Inbox says. All others handle them while
	// the transport waits. A name here, or in Dedup.Idempotent, that no handler
	// has when a router starts is logged as an error: it may be misspelt.
	// Defaults to none.
	DurableConsumers []string
	Durable          durable.Config

	// Dedup, Retry and Poison are for the three parts of the chain. Defaults
	// to their zero values, which are good; produced messages go to the outbox
	// of the same Schema. Dedup.Consumer is refused: each handler has the name
	// that it is added with.
	Dedup  dedup.Config
	Retry  retry.Config
	Poison poison.Config

	// Sequence has the versions of aggregates compared that messages tell of:
	// &sequence.Config{} ignores what is older than what was applied. Its Tx
	// defaults to dedup's, and its Window is longer than Retry tries a message, at
	// least sequence.DefaultWindow. Defaults to nil: nothing is compared.
	Sequence *sequence.Config

	// Logger defaults to slog's default logger; watermill.NopLogger{} silences it.
	Logger watermill.LoggerAdapter

	// MeterProvider is where the instruments are made, TracerProvider the
	// spans, of the outbox for produced messages too. Default to
	// OpenTelemetry's global ones, which do nothing until others are set.
	MeterProvider  metric.MeterProvider
	TracerProvider trace.TracerProvider
}

// Consumer adds handlers with the whole chain to a router.
type Consumer struct {
	durable    []string
	storage    *durable.Storage
	once       *dedup.Inbox
	retries    *retry.Retries
	quarantine *poison.Quarantine
	sequence   *sequence.Resequencer // or nil
	handlers   *handlers
}

// NewConsumer returns a Consumer whose handlers keep their state in db. The
// tables must be there when a router with its handlers starts, see schema.Up:
// then Router.Run checks everything that [Plugin] checks, and returns all
// mistakes at once.
func NewConsumer(db *sql.DB, config ConsumerConfig) (*Consumer, error) {
	config, err := config.shared()
	if err != nil {
		return nil, err
	}
	// What retry still tries must be remembered too.
	config.Dedup.MaxDuplicateAge = max(
		cmp.Or(config.Dedup.MaxDuplicateAge, dedup.DefaultMaxDuplicateAge), config.Retry.LongestDelay())
	if config.Sequence != nil && config.Sequence.Window == 0 {
		config.Sequence.Window = windowFor(config.Retry.LongestDelay())
	}
	storage, err := durable.New(db, config.Durable)
	errs := []error{err}
	if slices.Contains(config.DurableConsumers, "") {
		errs = append(errs, errors.New("once: DurableConsumers has an empty name"))
	}
	if config.Dedup.Consumer != "" {
		// It would be the name of all handlers, and each would skip what another has done.
		errs = append(errs, errors.New("once: Dedup.Consumer is set: handlers have the names that they are added with"))
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

// windowFor returns for how long sequence holds messages behind a version that is
// retried for at most as long as retried: longer than that, with time for the
// handler.
func windowFor(retried time.Duration) time.Duration {
	const most = 30 * 24 * time.Hour
	retried = min(retried, most)
	return max(sequence.DefaultWindow, retried+retried/8)
}

// shared gives schema, logger, providers and outbox on to the parts that do not
// have their own. It fails if one has tables of its own.
func (c ConsumerConfig) shared() (ConsumerConfig, error) {
	order := sequence.Config{} // stands in where there is none
	if c.Sequence != nil {
		order = *c.Sequence
		c.Sequence = &order // the caller's stays as it is
	}
	if order.Tx == nil {
		order.Tx = dedup.TxFromContext
	}
	for _, part := range []struct {
		name   string
		schema *schema.Config
	}{
		{"Durable", &c.Durable.Schema},
		{"Dedup", &c.Dedup.Schema},
		{"Retry", &c.Retry.Schema},
		{"Poison", &c.Poison.Schema},
		{"Sequence", &order.Schema},
	} {
		if *part.schema == (schema.Config{}) {
			*part.schema = c.Schema
		}
		if part.schema.WithDefaults() != c.Schema.WithDefaults() {
			return c, fmt.Errorf("once: %s.Schema is %+v, and Schema %+v: the parts share their tables, leave theirs empty",
				part.name, part.schema.WithDefaults(), c.Schema.WithDefaults())
		}
	}
	for _, part := range []*watermill.LoggerAdapter{
		&c.Durable.Logger, &c.Dedup.Logger, &c.Retry.Logger, &c.Poison.Logger, &order.Logger,
	} {
		if *part == nil {
			*part = c.Logger
		}
	}
	for _, part := range []*metric.MeterProvider{
		&c.Durable.MeterProvider, &c.Dedup.MeterProvider, &c.Retry.MeterProvider, &c.Poison.MeterProvider, &order.MeterProvider,
	} {
		if *part == nil {
			*part = c.MeterProvider
		}
	}
	for _, part := range []*trace.TracerProvider{&c.Dedup.TracerProvider, &c.Retry.TracerProvider, &c.Poison.TracerProvider} {
		if *part == nil {
			*part = c.TracerProvider
		}
	}
	if c.Dedup.Outbox == nil {
		box, err := outbox.New(outbox.Config{
			Schema: c.Schema, MeterProvider: c.MeterProvider, TracerProvider: c.TracerProvider,
		})
		if err != nil {
			return c, err
		}
		c.Dedup.Outbox = box.Publisher
	}
	return c, nil
}

// AddHandler adds a handler to router that consumes topic from sub as
// consumer. The name is the handler's and, for good, the one that its messages
// are remembered under: a new name begins anew.
//
// sub is the transport's: any Watermill subscriber, or local's. Middleware of
// the router goes around the chain. As the router does for a name that is taken,
// it panics if handle is nil.
func (c *Consumer) AddHandler(
	router *message.Router, consumer, topic string, sub message.Subscriber, handle HandlerFunc,
) *message.Handler {
	mustHandle(consumer, handle != nil)
	return c.add(router, consumer, topic, sub, c.once.Middleware(c.inOrder(inTx(handle))))
}

// AddHandlerInBatches is [Consumer.AddHandler] for a handler that says it may share
// its transaction: up to ConsumerConfig.Dedup.Batch.Size messages in flight are
// committed at once, see [dedup.Inbox.BatchMiddleware].
func (c *Consumer) AddHandlerInBatches(
	router *message.Router, consumer, topic string, sub message.Subscriber, handle HandlerFunc,
) *message.Handler {
	mustHandle(consumer, handle != nil)
	return c.add(router, consumer, topic, sub, c.once.BatchMiddleware(c.inOrder(inTx(handle))))
}

// AddBatchHandler is [Consumer.AddHandlerInBatches] for a handler that is given
// all messages of a batch together, so that it can write them with few
// statements. Say with [dedup.CausedBy] what produced messages come from.
//
// It panics if the Consumer compares versions: these are looked at message by
// message.
func (c *Consumer) AddBatchHandler(
	router *message.Router, consumer, topic string, sub message.Subscriber, handle BatchHandlerFunc,
) *message.Handler {
	if c.sequence != nil {
		panic("once: AddBatchHandler does not go with ConsumerConfig.Sequence; AddHandlerInBatches does")
	}
	mustHandle(consumer, handle != nil)
	return c.add(router, consumer, topic, sub, c.once.BatchHandler(handle))
}

// mustHandle panics while the service starts, for a handler that is nil: later
// every message would end in quarantine over it.
func mustHandle(consumer string, there bool) {
	if !there {
		panic(fmt.Sprintf("once: the handler of %q is nil", consumer))
	}
}

// inOrder puts the comparison of versions around a handler, if there is one.
func (c *Consumer) inOrder(h message.HandlerFunc) message.HandlerFunc {
	if c.sequence == nil {
		return h
	}
	return c.sequence.Middleware(h)
}

// add puts retry and poison around a handler that the inbox is in already.
func (c *Consumer) add(
	router *message.Router, consumer, topic string, sub message.Subscriber, once message.HandlerFunc,
) *message.Handler {
	chain := c.quarantine.Middleware(c.retries.Middleware(once))
	if slices.Contains(c.durable, consumer) {
		sub = c.storage.Subscriber(sub)
	}
	sub = c.handlers.add(router, consumer, c.retries.Subscriber(consumer, sub))
	return router.AddConsumerHandler(consumer, topic, sub,
		func(msg *message.Message) error {
			_, err := chain(msg)
			return err
		})
}

// inTx gives handle the transaction that the inbox has begun.
func inTx(handle HandlerFunc) message.HandlerFunc {
	return func(msg *message.Message) ([]*message.Message, error) {
		tx, ok := dedup.TxFromContext(msg.Context())
		if !ok {
			return nil, errors.New("once: the handler runs outside of its transaction")
		}
		return handle(msg.Context(), tx, msg)
	}
}

// Run removes what need not be remembered any longer, see [dedup.Inbox.Run],
// until ctx ends. A router with a handler of this Consumer does so while it
// runs; Run is for a process without one, see dedup.Config.SweptElsewhere.
func (c *Consumer) Run(ctx context.Context) error { return c.once.Run(ctx) }

// Quarantine returns the store of the messages that were given up: to list,
// replay or discard them.
func (c *Consumer) Quarantine() *poison.Quarantine { return c.quarantine }

// To says which topic a message that a handler returns is for, and returns it.
func To(topic string, msg *message.Message) *message.Message {
	outbox.SetTopic(msg, topic)
	return msg
}
