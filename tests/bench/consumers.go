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

// inFlight is the number of messages that are handled at the same time in
// comparisons. pgbench has as many clients.
const inFlight = 8

// consumerName is the consumer name.
const consumerName = "bench"

// createNaive creates a minimal inbox: a table of ids.
const createNaive = `CREATE TABLE naive (message_id text PRIMARY KEY)`

// subscriber returns a subscriber of package rabbit.
func (s *scene) subscriber(config rabbit.SubscriberConfig) (*rabbit.Subscriber, error) {
	queue := s.queue.consumed()
	queue.Marshaler = rabbit.Marshaler{}
	return rabbit.NewSubscriber(queue, config)
}

// apart handles each message in its own transaction, without an inbox.
func apart(s *scene, router *message.Router) error {
	return s.handle(router, func(ctx context.Context, tx *sql.Tx, _ *message.Message) error { return business(ctx, tx) })
}

// naive uses a minimal inbox, written by hand.
func naive(s *scene, router *message.Router) error { return s.handle(router, naively) }

func (s *scene) handle(router *message.Router, work func(ctx context.Context, tx *sql.Tx, msg *message.Message) error) error {
	subscriber, err := s.subscriber(rabbit.SubscriberConfig{InFlight: inFlight})
	if err != nil {
		return err
	}
	router.AddConsumerHandler(consumerName, s.queue.name, subscriber, func(msg *message.Message) error {
		return inTx(msg.Context(), s.db.DB, func(tx *sql.Tx) error { return work(msg.Context(), tx, msg) })
	})
	return nil
}

// naively skips a message whose id is in the table.
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

// chain consumes with the whole chain of this module.
func chain(config rabbit.SubscriberConfig) handlers { return chainWith(config, handled) }

func handled(ctx context.Context, tx *sql.Tx, _ *message.Message) ([]*message.Message, error) {
	return nil, business(ctx, tx)
}

func chainWith(config rabbit.SubscriberConfig, handle once.HandlerFunc) handlers {
	return chainOn(func(s *scene) *sql.DB { return s.db.DB }, config, handle)
}

// lazyChain is chain with package lazytx: BEGIN is sent with the first
// statement.
func lazyChain(config rabbit.SubscriberConfig) handlers {
	return chainOn(func(s *scene) *sql.DB { return s.db.lazy }, config, handled)
}

// keepsTwo returns a pool with the default of SetMaxIdleConns, 2.
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

// stock consumes with the subscriber of watermill-amqp and its defaults. It has
// one message of each subscription in flight.
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
