package docs

import (
	"context"
	"database/sql"
	"errors"
	"net/http"

	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/watermill-once/once"
	"github.com/watermill-once/once/idempotency"
	"github.com/watermill-once/once/outbox"
	"github.com/watermill-once/once/rabbit"
	"github.com/watermill-once/once/retry"
)

// The code of docs/effects-outside.md.

type outsideProvider interface {
	Charge(ctx context.Context, key string, order []byte) (receipt string, err error)
	Find(ctx context.Context, key string) (receipt string, found bool, err error)
	Send(ctx context.Context, key string, mail []byte) (receipt string, err error)
}

func _(consumer *once.Consumer, router *message.Router, subscriber message.Subscriber, provider outsideProvider) {
	consumer.AddHandler(router, "payments", "orders.placed", subscriber,
		func(ctx context.Context, tx *sql.Tx, msg *message.Message) ([]*message.Message, error) {
			receipt, err := provider.Charge(ctx, msg.UUID, msg.Payload)
			if err != nil {
				return nil, err
			}
			_, err = tx.ExecContext(ctx, `INSERT INTO payments (message_id, receipt) VALUES ($1, $2)`, msg.UUID, receipt)
			return nil, err
		})
}

func _(consumer *once.Consumer, router *message.Router, subscriber message.Subscriber, provider outsideProvider) {
	consumer.AddHandler(router, "mailer", "mails.intended", subscriber,
		func(ctx context.Context, tx *sql.Tx, msg *message.Message) ([]*message.Message, error) {
			receipt, found, err := provider.Find(ctx, msg.UUID) // Send has passed this id as a reference
			if err == nil && !found {
				receipt, err = provider.Send(ctx, msg.UUID, msg.Payload)
			}
			if err != nil {
				return nil, err
			}
			_, err = tx.ExecContext(ctx, `INSERT INTO mails (message_id, receipt) VALUES ($1, $2)`, msg.UUID, receipt)
			return nil, err
		})
}

func _(db *sql.DB, consumer *once.Consumer, router *message.Router, subscriber message.Subscriber, provider outsideProvider) {
	consumer.AddHandler(router, "mailer", "mails.intended", subscriber,
		func(ctx context.Context, tx *sql.Tx, msg *message.Message) ([]*message.Message, error) {
			marked, err := db.ExecContext(ctx, `INSERT INTO mails_begun (message_id) VALUES ($1) ON CONFLICT DO NOTHING`, msg.UUID)
			if err != nil {
				return nil, err
			}
			if first, err := marked.RowsAffected(); err != nil || first == 0 {
				return nil, retry.Permanent(errors.Join(errors.New("an earlier attempt may have sent this mail: look, then edit or discard"), err))
			}
			receipt, err := provider.Send(ctx, msg.UUID, msg.Payload)
			if err != nil {
				return nil, retry.Permanent(err)
			}
			_, err = tx.ExecContext(ctx, `INSERT INTO mails (message_id, receipt) VALUES ($1, $2)`, msg.UUID, receipt)
			return nil, err
		})
}

// The code of docs/idempotency-keys.md.

func _(ctx context.Context, db *sql.DB, mux *http.ServeMux, authenticatedUser func(r *http.Request) string) error {
	keys, err := idempotency.New(db, idempotency.Config{Client: authenticatedUser})
	if err != nil {
		return err
	}
	mux.Handle("POST /orders", keys.Handler(func(w http.ResponseWriter, r *http.Request, tx *sql.Tx) error {
		if _, err := tx.ExecContext(r.Context(), `INSERT INTO orders (customer) VALUES ($1)`, r.FormValue("customer")); err != nil {
			return err
		}
		w.WriteHeader(http.StatusCreated)
		return outbox.Publisher(tx).Publish("orders.placed", outbox.NewMessage([]byte(r.FormValue("customer"))))
	}))
	return keys.Run(ctx) // until ctx ends; deletes keys after Config.Retention
}

// The code of docs/sagas.md.

func _(consumer *once.Consumer, router *message.Router, subscriber message.Subscriber,
	reserve func(ctx context.Context, tx *sql.Tx, order []byte) (ok bool, err error),
) {
	consumer.AddHandler(router, "inventory", "payments.captured", subscriber,
		func(ctx context.Context, tx *sql.Tx, msg *message.Message) ([]*message.Message, error) {
			ok, err := reserve(ctx, tx, msg.Payload)
			if err != nil {
				return nil, err // try again
			}
			topic := "stock.reserved"
			if !ok {
				topic = "stock.refused" // refunds receives it
			}
			event := message.NewMessage(msg.UUID+"."+topic, msg.Payload)
			return []*message.Message{once.To(topic, event)}, nil
		})
}

// The code of docs/ordering.md.

func placeOrderOf(ctx context.Context, db *sql.DB, customer, order string) error {
	return outbox.InTx(ctx, db, func(tx *sql.Tx, events message.Publisher) error {
		if err := outbox.LockKey(ctx, tx, customer); err != nil {
			return err
		}
		if _, err := tx.ExecContext(ctx, `INSERT INTO orders (id, customer) VALUES ($1, $2)`, order, customer); err != nil {
			return err
		}
		msg := outbox.NewMessage([]byte(order))
		outbox.SetOrderingKey(msg, customer)
		return events.Publish("orders.placed", msg)
	})
}

var _ = placeOrderOf

func _(db *sql.DB, config amqp.Config, router *message.Router, capture once.HandlerFunc) error {
	config.Queue.Arguments = amqp091.Table{
		amqp091.QueueTypeArg:            amqp091.QueueTypeQuorum,
		amqp091.SingleActiveConsumerArg: true, // "x-single-active-consumer"
	}
	subscriber, err := rabbit.NewSubscriber(config, rabbit.SubscriberConfig{})
	if err != nil {
		return err
	}
	consumer, err := once.NewConsumer(db, once.ConsumerConfig{
		Retry: retry.Config{KeyOrder: retry.BlockWhileRetried},
	})
	if err != nil {
		return err
	}
	consumer.AddHandler(router, "payments", "orders.placed", subscriber, capture)
	return nil
}

// The code of docs/topic-exchange.md.

func _(consumer *once.Consumer, router *message.Router, uri string, bill once.HandlerFunc) error {
	config := rabbit.TopicExchange(uri, "shop", "billing") // exchange "shop", service "billing"
	config.Queue.Arguments = amqp091.Table{amqp091.QueueTypeArg: amqp091.QueueTypeQuorum}
	publisher, err := rabbit.NewPublisher(config, rabbit.PublisherConfig{})
	if err != nil {
		return err
	}
	subscriber, err := rabbit.NewSubscriber(config, rabbit.SubscriberConfig{})
	if err != nil {
		return err
	}
	consumer.AddHandler(router, "billing", "orders.*", subscriber, bill)
	return publisher.Close()
}
