package docs

import (
	"context"
	"database/sql"
	"errors"
	"log"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/lib/pq"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"

	"github.com/watermill-once/once"
	"github.com/watermill-once/once/dedup"
	"github.com/watermill-once/once/forwarder"
	"github.com/watermill-once/once/forwarder/hint"
	"github.com/watermill-once/once/operate/health"
	"github.com/watermill-once/once/outbox"
	"github.com/watermill-once/once/poison"
	"github.com/watermill-once/once/rabbit"
	"github.com/watermill-once/once/retry"
	"github.com/watermill-once/once/schema"
	"github.com/watermill-once/once/sequence"
)

// The functions below contain the Go code blocks of README.md and docs/, so that the
// compiler checks the blocks.

func serve(ctx context.Context, db *sql.DB, config amqp.Config, router *message.Router) error {
	if err := schema.Up(ctx, db, schema.Config{}); err != nil { // creates the tables
		return err
	}
	config.Marshaler = rabbit.Marshaler{}
	publisher, err1 := rabbit.NewPublisher(config, rabbit.PublisherConfig{})
	subscriber, err2 := rabbit.NewSubscriber(config, rabbit.SubscriberConfig{})
	consumer, err3 := once.NewConsumer(db, once.ConsumerConfig{})
	if err := errors.Join(err1, err2, err3); err != nil {
		return err
	}
	fwd, err := forwarder.New(db, publisher, forwarder.Config{})
	if err != nil {
		return err
	}
	consumer.AddHandler(router, "payments", "orders.placed", subscriber,
		func(ctx context.Context, tx *sql.Tx, msg *message.Message) ([]*message.Message, error) {
			_, err := tx.ExecContext(ctx, `INSERT INTO payments (order_id) VALUES ($1)`, string(msg.Payload))
			return nil, err // an error rolls back; the message is tried again later
		})
	return once.Run(ctx, 25*time.Second, router, fwd, publisher) // until ctx ends
}

func placeOrder(ctx context.Context, db *sql.DB, order string) error {
	return outbox.InTx(ctx, db, func(tx *sql.Tx, events message.Publisher) error {
		if _, err := tx.ExecContext(ctx, `INSERT INTO orders (id) VALUES ($1)`, order); err != nil {
			return err
		}
		return events.Publish("orders.placed", outbox.NewMessage([]byte(order)))
	})
}

var _, _ = serve, placeOrder

func _(ctx context.Context, db *sql.DB) error {
	text, err := schema.Roles(schema.Config{}, "orders_")
	if err != nil {
		return err
	}
	_, err = db.ExecContext(ctx, text) // as the owner of the tables
	return err
}

func _(db *sql.DB) (*once.Consumer, error) {
	consumer, err := once.NewConsumer(db, once.ConsumerConfig{Retry: retry.Config{Breaker: &retry.Breaker{}}})
	return consumer, err
}

func _(db *sql.DB) (*once.Consumer, error) {
	consumer, err := once.NewConsumer(db, once.ConsumerConfig{Retry: retry.Config{Limits: retry.Limits{PerSecond: 50, Burst: 10}}})
	return consumer, err
}

func _(consumer *once.Consumer, router *message.Router, subscriber message.Subscriber, capture once.HandlerFunc) {
	// The handler does not change. It is called for one message after another.
	consumer.AddHandlerInBatches(router, "payments", "orders.placed", subscriber, capture)

	// The handler gets all messages of the batch, and writes them with one statement.
	consumer.AddBatchHandler(router, "revenue", "orders.placed", subscriber,
		func(ctx context.Context, tx *sql.Tx, orders []*message.Message) ([]*message.Message, error) {
			ids := make([]string, len(orders))
			for n, order := range orders {
				ids[n] = order.UUID
			}
			_, err := tx.ExecContext(ctx, `INSERT INTO booked (order_id) SELECT unnest($1::text[])`, pq.Array(ids))
			return nil, err
		})
}

func _(db *sql.DB, amqpConfig amqp.Config, router *message.Router, notify once.HandlerFunc) error {
	consumer, err := once.NewConsumer(db, once.ConsumerConfig{
		DurableConsumers: []string{"notifications"},
	})
	if err != nil {
		return err
	}
	subscriber, err := rabbit.NewSubscriber(amqpConfig, rabbit.SubscriberConfig{})
	if err != nil {
		return err
	}
	consumer.AddHandler(router, "notifications", "payments.captured", subscriber, notify)
	return nil
}

func _(db *sql.DB) (*once.Consumer, error) {
	consumer, err := once.NewConsumer(db, once.ConsumerConfig{
		Sequence: &sequence.Config{},
	})
	return consumer, err
}

func _() *sequence.Config {
	return &sequence.Config{
		Policy:      sequence.HoldForGap,
		FromZero:    true,           // versions begin at 0; the default is 1
		Window:      time.Hour,      // the default is 15 minutes, or more if retry tries for longer
		AfterWindow: sequence.Apply, // the default is Quarantine; OnGap can decide instead
	}
}

func _(ctx context.Context, db *sql.DB) error {
	tables := schema.Config{Inbox: schema.ByDay}
	if err := schema.Up(ctx, db, tables); err != nil {
		return err
	}
	consumer, err := once.NewConsumer(db, once.ConsumerConfig{Schema: tables})
	if err != nil {
		return err
	}
	return consumer.Run(ctx)
}

func _(ctx context.Context, db *sql.DB, fwd *forwarder.Forwarder, order string) error {
	return outbox.InTx(ctx, db, func(tx *sql.Tx, events message.Publisher) error {
		if _, err := tx.ExecContext(ctx, `INSERT INTO orders (id) VALUES ($1)`, order); err != nil {
			return err
		}
		return events.Publish("orders.placed", outbox.NewMessage([]byte(order)))
	}, fwd.Hint)
}

func _(ctx context.Context, db *sql.DB, amqpConfig amqp.Config) error {
	amqpConfig.Marshaler = rabbit.Marshaler{}
	publisher, err := rabbit.NewPublisher(amqpConfig, rabbit.PublisherConfig{})
	if err != nil {
		return err
	}
	defer publisher.Close()
	fwd, err := forwarder.New(db, publisher, forwarder.Config{})
	if err != nil {
		return err
	}
	return fwd.Run(ctx) // until ctx ends, or fwd.Close
}

func _(router *message.Router, fwd *forwarder.Forwarder, publisher *rabbit.Publisher, db *sql.DB) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	return once.Run(ctx, 25*time.Second, router, fwd, publisher, db)
}

func _(router *message.Router, quarantine *poison.Store, retries *retry.Retries, inbox *dedup.Inbox) {
	router.AddPlugin(once.Plugin(quarantine, retries, inbox))
}

func _(db *sql.DB, amqpConfig amqp.Config, meters metric.MeterProvider, traces trace.TracerProvider) error {
	publisher, err := rabbit.NewPublisher(amqpConfig, rabbit.PublisherConfig{MeterProvider: meters})
	if err != nil {
		return err
	}
	defer publisher.Close()
	subscriber, err := rabbit.NewSubscriber(amqpConfig, rabbit.SubscriberConfig{MeterProvider: meters})
	if err != nil {
		return err
	}
	fwd, err := forwarder.New(db, publisher, forwarder.Config{
		MeterProvider:  meters,
		TracerProvider: traces,
		Topics:         []string{"orders.placed", "payments.captured"}, // told apart by counters
	})
	if err != nil {
		return err
	}
	box, err := outbox.New(outbox.Config{MeterProvider: meters, TracerProvider: traces})
	if err != nil {
		return err
	}
	consumer, err := once.NewConsumer(db, once.ConsumerConfig{MeterProvider: meters, TracerProvider: traces})
	_, _ = subscriber, fwd
	_, _ = box, consumer
	return err
}

func _(ctx context.Context, db *sql.DB) error {
	return schema.Up(ctx, db, schema.Config{})
}

func _(db *sql.DB) {
	const most = 24
	db.SetMaxOpenConns(most)
	db.SetMaxIdleConns(most)
}

func _(
	db *sql.DB, router *message.Router, subscriber message.Subscriber, logger watermill.LoggerAdapter, handle message.NoPublishHandlerFunc,
) error {
	inbox, err := dedup.New(db, dedup.Config{Logger: logger})
	if err != nil {
		return err
	}
	router.AddMiddleware(inbox.Middleware)
	router.AddConsumerHandler("payments", "orders.placed", subscriber, handle)
	return nil
}

func _(
	db *sql.DB, router *message.Router, subscriber message.Subscriber, logger watermill.LoggerAdapter, inbox *dedup.Inbox,
	handle message.NoPublishHandlerFunc,
) error {
	retries, err := retry.New(db, retry.Config{Logger: logger})
	if err != nil {
		return err
	}
	router.AddMiddleware(retries.Middleware, inbox.Middleware) // in place of inbox.Middleware alone
	router.AddConsumerHandler("payments", "orders.placed", retries.Subscriber("payments", subscriber), handle)

	quarantine, err := poison.New(db, poison.Config{Logger: logger})
	if err != nil {
		return err
	}
	router.AddMiddleware(quarantine.Middleware, retries.Middleware, inbox.Middleware)
	return nil
}

func _(
	ctx context.Context, db *sql.DB, router *message.Router, fwd *forwarder.Forwarder,
	publisher *rabbit.Publisher, subscriber *rabbit.Subscriber,
) error {
	checks, err := health.New(db, health.Config{
		Running:  map[string]<-chan struct{}{"router": router.Running(), "forwarder": fwd.Running()},
		Brokers:  map[string]health.Pinger{"publisher": publisher, "subscriber": subscriber},
		MaxLag:   time.Minute,
		Stopping: ctx.Done(),
	})
	if err != nil {
		return err
	}
	http.Handle("/health/", checks.Handler()) // GET /health/live, GET /health/ready
	if err := checks.Health(ctx).Err(); err != nil {
		log.Println("health:", err) // a line for each failed check, and what to do
	}
	return nil
}

func _(db *sql.DB, publisher *rabbit.Publisher) (*forwarder.Forwarder, error) {
	fwd, err := forwarder.New(db, publisher, forwarder.Config{
		Policies: map[string]forwarder.Policy{
			"payments": {MaxAttempts: 100, AfterDead: forwarder.BlockKey},
			"mails":    {MaxAttempts: 3, Backoff: forwarder.Exponential(time.Second, time.Minute)},
		},
	})
	return fwd, err
}

// More code of the docs.

func receiveHints(ctx context.Context, fwd *forwarder.Forwarder) error {
	receiver, err := hint.Listen(":7946", fwd.Hint)
	if err != nil {
		return err
	}
	return once.Run(ctx, 0, fwd, receiver)
}

func sendHints() (*hint.Sender, error) {
	sender, err := hint.NewSender([]string{"forwarder.shop.svc:7946"}, hint.Config{})
	return sender, err
}

var _, _ = receiveHints, sendHints

// The code of docs/clusters.md.

func _(config amqp.Config) error {
	nodes := []string{"rabbit-1", "rabbit-2", "rabbit-3:5673"}
	publisher, err1 := rabbit.NewPublisher(config, rabbit.PublisherConfig{Nodes: nodes})
	subscriber, err2 := rabbit.NewSubscriber(config, rabbit.SubscriberConfig{Nodes: nodes})
	return errors.Join(err1, err2, publisher.Close(), subscriber.Close())
}
