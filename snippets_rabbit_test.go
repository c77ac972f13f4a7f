package once_test

import (
	"context"
	"database/sql"

	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/watermill-once/once"
	"github.com/watermill-once/once/forwarder"
	"github.com/watermill-once/once/outbox"
	"github.com/watermill-once/once/rabbit"
)

// The code of docs/topic-exchange.md, as in snippets_test.go.

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

// The code of docs/adopting.md about limits of RabbitMQ.

func _(ctx context.Context, db *sql.DB, fwd *forwarder.Forwarder, work func(tx *sql.Tx, events message.Publisher) error) error {
	events, err := outbox.New(outbox.Config{Check: rabbit.Check})
	if err != nil {
		return err
	}
	return events.InTx(ctx, db, work, fwd.Hint)
}
