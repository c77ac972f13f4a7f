package dropin

import (
	"context"
	"database/sql"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/components/cqrs"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/watermill-once/once"
	"github.com/watermill-once/once/dedup"
	"github.com/watermill-once/once/embedded"
	"github.com/watermill-once/once/eventbus"
	"github.com/watermill-once/once/forwarder"
	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/outbox"
	"github.com/watermill-once/once/outbox/lazytx"
	"github.com/watermill-once/once/poison"
	"github.com/watermill-once/once/retry"
)

// The declarations below are the code of docs/cqrs.md, and the test runs them.

type OrderPlaced struct{ ID string }

var marshaler = eventbus.Marshaler{CommandEventMarshaler: cqrs.JSONMarshaler{
	NewUUID:      outbox.NewID,
	GenerateName: cqrs.StructName, // "OrderPlaced" is the topic too
}}

func newBus() (*cqrs.EventBus, error) {
	return cqrs.NewEventBusWithConfig(eventbus.Publisher(outbox.Publisher), cqrs.EventBusConfig{
		GeneratePublishTopic: func(params cqrs.GenerateEventPublishTopicParams) (string, error) { return params.EventName, nil },
		Marshaler:            marshaler,
	})
}

func placeOrder(ctx context.Context, db *sql.DB, bus *cqrs.EventBus, id string) error {
	return outbox.InTx(ctx, db, func(tx *sql.Tx, _ message.Publisher) error {
		if _, err := tx.ExecContext(ctx, `INSERT INTO orders (id) VALUES ($1)`, id); err != nil {
			return err
		}
		return bus.Publish(eventbus.WithTx(ctx, tx), OrderPlaced{ID: id})
	})
}

func pay(ctx context.Context, event *OrderPlaced) error {
	tx, _ := dedup.TxFromContext(ctx) // the inbox always sets it
	_, err := tx.ExecContext(ctx, `INSERT INTO payments (order_id) VALUES ($1)`, event.ID)
	return err
}

func openPool(pool *pgxpool.Pool) *sql.DB {
	return sql.OpenDB(lazytx.Connector(stdlib.GetPoolConnector(pool))) // takes its connections from the pool
}

func addHandlers(db *sql.DB, router *message.Router, subscriber message.Subscriber) error {
	consumer, err := once.NewConsumer(db, once.ConsumerConfig{})
	if err != nil {
		return err
	}
	processor, err := cqrs.NewEventProcessorWithConfig(router, cqrs.EventProcessorConfig{
		GenerateSubscribeTopic: func(params cqrs.EventProcessorGenerateSubscribeTopicParams) (string, error) {
			return params.EventName, nil
		},
		SubscriberConstructor: func(params cqrs.EventProcessorSubscriberConstructorParams) (message.Subscriber, error) {
			known := eventbus.KnownEvents(marshaler, params.EventHandler.NewEvent())
			return consumer.Subscriber(router, params.HandlerName, subscriber, known), nil
		},
		Marshaler: marshaler,
	})
	if err != nil {
		return err
	}
	return processor.AddHandlers(cqrs.NewEventHandler("payments", pay)) // the name of the consumer: never change it
}

func addSingleMiddlewares(db *sql.DB, router *message.Router) (*retry.Retries, error) {
	inbox, err := dedup.New(db, dedup.Config{Outbox: outbox.Publisher})
	if err != nil {
		return nil, err
	}
	retries, err := retry.New(db, retry.Config{})
	if err != nil {
		return nil, err
	}
	quarantine, err := poison.New(db, poison.Config{})
	if err != nil {
		return nil, err
	}
	router.AddPlugin(once.Plugin(quarantine, retries, inbox)) // makes the checks at start
	router.AddMiddleware(quarantine.Middleware, retries.Middleware, inbox.Middleware, eventbus.KnownEvents(marshaler, OrderPlaced{}))
	return retries, nil // SubscriberConstructor returns retries.Subscriber(params.HandlerName, subscriber)
}

func addHandle(db *sql.DB, router *message.Router, subscriber message.Subscriber) error {
	consumer, err := once.NewConsumer(db, once.ConsumerConfig{Marshaler: marshaler})
	if err != nil {
		return err
	}
	once.Handle(consumer, router, "payments", "OrderPlaced", subscriber,
		func(ctx context.Context, tx *sql.Tx, event OrderPlaced) error {
			_, err := tx.ExecContext(ctx, `INSERT INTO payments (order_id) VALUES ($1)`, event.ID)
			return err
		})
	return nil
}

// addProcessor is for the single middlewares. The page describes it in a comment.
func addProcessor(db *sql.DB, router *message.Router, subscriber message.Subscriber) error {
	retries, err := addSingleMiddlewares(db, router)
	if err != nil {
		return err
	}
	processor, err := cqrs.NewEventProcessorWithConfig(router, cqrs.EventProcessorConfig{
		GenerateSubscribeTopic: func(params cqrs.EventProcessorGenerateSubscribeTopicParams) (string, error) {
			return params.EventName, nil
		},
		SubscriberConstructor: func(params cqrs.EventProcessorSubscriberConstructorParams) (message.Subscriber, error) {
			return retries.Subscriber(params.HandlerName, subscriber), nil
		},
		Marshaler: marshaler,
	})
	if err != nil {
		return err
	}
	return processor.AddHandlers(cqrs.NewEventHandler("payments", pay))
}

func TestPageOfCQRS(t *testing.T) {
	for name, add := range map[string]func(*sql.DB, *message.Router, message.Subscriber) error{
		"a Consumer": addHandlers, "single middlewares": addProcessor, "without a processor": addHandle,
	} {
		t.Run(name, func(t *testing.T) {
			if name == "single middlewares" {
				kit.Long(t)
			}
			t.Parallel()
			runPageOfCQRS(t, add)
		})
	}
}

func runPageOfCQRS(t *testing.T, add func(*sql.DB, *message.Router, message.Subscriber) error) {
	t.Helper()
	database := kit.Postgres(t)
	ctx := t.Context()
	pool, err := pgxpool.New(ctx, database.DSN)
	if err != nil {
		t.Fatal(err)
	}
	db := openPool(pool)
	if _, err := db.ExecContext(ctx, `CREATE TABLE orders (id text); CREATE TABLE payments (order_id text)`); err != nil {
		t.Fatal(err)
	}
	transport, err := embedded.New(db, embedded.Config{})
	if err != nil {
		t.Fatal(err)
	}
	fwd, err := forwarder.New(db, transport, forwarder.Config{})
	if err != nil {
		t.Fatal(err)
	}
	router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
	if err != nil {
		t.Fatal(err)
	}
	if err := add(db, router, transport.Subscriber()); err != nil {
		t.Fatal(err)
	}
	bus, err := newBus()
	if err != nil {
		t.Fatal(err)
	}
	running, stop := context.WithCancel(ctx)
	ended := kit.Go(func() error { return once.Run(running, 0, router, fwd) })
	if err := placeOrder(ctx, db, bus, "17"); err != nil {
		t.Fatal(err)
	}
	kit.Eventually(t, time.Minute, "the order is paid", func() bool {
		var paid int
		if err := db.QueryRowContext(ctx, `SELECT count(*) FROM payments WHERE order_id = '17'`).Scan(&paid); err != nil {
			t.Fatal(err)
		}
		return paid == 1
	})
	stop()
	if err := <-ended; err != nil {
		t.Errorf("once.Run returned %v", err)
	}
	if err := db.Close(); err != nil {
		t.Error(err)
	}
	pool.Close()
}
