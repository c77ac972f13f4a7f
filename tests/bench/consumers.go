package main

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/ThreeDotsLabs/watermill"
	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once"
	"github.com/watermill-once/once/rabbit"
)

// inFlight is the number of messages that are handled at the same time if consumers are
// compared with each other or with pgbench. pgbench has the same number of clients.
const inFlight = 8

// consumerName is the name of the consumer in all measurements.
const consumerName = "bench"

// createNaive creates a minimal inbox, which is a table of ids.
const createNaive = `CREATE TABLE naive (message_id text PRIMARY KEY)`

// subscriber returns a rabbit.Subscriber for the scene's queue.
func (s *scene) subscriber(config rabbit.SubscriberConfig) (*rabbit.Subscriber, error) {
	queue := s.queue.consumed()
	queue.Marshaler = rabbit.Marshaler{}
	return rabbit.NewSubscriber(queue, config)
}

// apart adds a handler that handles each message in a transaction of its own, without an
// inbox.
func apart(s *scene, router *message.Router) error {
	return s.handle(router, s.db.DB, func(ctx context.Context, tx *sql.Tx, _ *message.Message) error { return business(ctx, tx) })
}

// naive adds a handler that uses the minimal inbox instead of the inbox of this module.
func naive(s *scene, router *message.Router) error { return s.handle(router, s.db.DB, naively) }

// apartWithPgx is like apart, with pgx's driver.
func apartWithPgx(s *scene, router *message.Router) error {
	return s.handle(router, s.db.std, func(ctx context.Context, tx *sql.Tx, _ *message.Message) error { return business(ctx, tx) })
}

// withPq returns the pool with lib/pq.
func withPq(s *scene) *sql.DB { return s.db.DB }

// withPgx returns the pool with pgx's driver.
func withPgx(s *scene) *sql.DB { return s.db.std }

// withLazyPgx returns the pool with pgx's driver and lazytx.
func withLazyPgx(s *scene) *sql.DB { return s.db.lazyStd }

func (s *scene) handle(router *message.Router, db *sql.DB, work func(ctx context.Context, tx *sql.Tx, msg *message.Message) error) error {
	subscriber, err := s.subscriber(rabbit.SubscriberConfig{InFlight: inFlight})
	if err != nil {
		return err
	}
	router.AddConsumerHandler(consumerName, s.queue.name, subscriber, func(msg *message.Message) error {
		return inTx(msg.Context(), db, func(tx *sql.Tx) error { return work(msg.Context(), tx, msg) })
	})
	return nil
}

// naively writes the business row, unless the id of the message is already in the minimal
// inbox.
func naively(ctx context.Context, tx *sql.Tx, msg *message.Message) error {
	result, err := tx.ExecContext(ctx, `INSERT INTO naive (message_id) VALUES ($1) ON CONFLICT DO NOTHING`, msg.UUID)
	if err != nil {
		return err
	}
	if fresh, err := result.RowsAffected(); err != nil || fresh == 0 {
		return err
	}
	return business(ctx, tx)
}

// chain returns handlers that use once.Consumer, with all its middlewares.
func chain(config rabbit.SubscriberConfig) handlers { return chainWith(config, handled) }

func handled(ctx context.Context, tx *sql.Tx, _ *message.Message) ([]*message.Message, error) {
	return nil, business(ctx, tx)
}

func chainWith(config rabbit.SubscriberConfig, handle once.HandlerFunc) handlers {
	return chainOn(withPq, config, handle)
}

// lazyChain is like chain, but its pool uses lazytx: BEGIN is sent with the first
// statement.
func lazyChain(config rabbit.SubscriberConfig) handlers {
	return chainOn(func(s *scene) *sql.DB { return s.db.lazy }, config, handled)
}

// keepsTwo lets the pool keep only two idle connections, as database/sql does by default.
// It returns the pool.
func keepsTwo(s *scene) *sql.DB {
	s.db.SetMaxIdleConns(2)
	return s.db.DB
}

func chainOn(pool func(s *scene) *sql.DB, config rabbit.SubscriberConfig, handle once.HandlerFunc) handlers {
	return func(s *scene, router *message.Router) error {
		subscriber, err := s.subscriber(config)
		if err != nil {
			return err
		}
		consumer, err := once.NewConsumer(pool(s), once.ConsumerConfig{})
		if err != nil {
			return err
		}
		consumer.AddHandler(router, consumerName, s.queue.name, subscriber, handle)
		return nil
	}
}

// stock returns handlers that use the subscriber of watermill-amqp with its defaults.
// Each subscription has one message in flight.
func stock(subscriptions int) handlers {
	return func(s *scene, router *message.Router) error {
		subscriber, err := wamqp.NewSubscriber(s.queue.consumed(), watermill.NopLogger{})
		if err != nil {
			return err
		}
		for n := range subscriptions {
			router.AddConsumerHandler(fmt.Sprintf("bench-%d", n), s.queue.name, subscriber, func(msg *message.Message) error {
				return inTx(msg.Context(), s.db.DB, func(tx *sql.Tx) error { return naively(msg.Context(), tx, msg) })
			})
		}
		return nil
	}
}
