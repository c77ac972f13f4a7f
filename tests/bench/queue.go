package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/watermill-once/once/rabbit"
)

// queue is a new queue in RabbitMQ, bound to a fanout exchange of the same name.
type queue struct {
	url  string
	name string
	kind string
	conn *amqp.Connection
}

func newQueue(url, kind string) (_ *queue, err error) {
	conn, err := amqp.Dial(url)
	if err != nil {
		return nil, err
	}
	q := &queue{url: url, name: "once-bench-" + uuid.NewString(), kind: kind, conn: conn}
	if err := q.declare(); err != nil {
		return nil, errors.Join(err, q.Close())
	}
	return q, nil
}

func (q *queue) declare() error {
	channel, err := q.conn.Channel()
	if err != nil {
		return err
	}
	defer channel.Close()
	if err := channel.ExchangeDeclare(q.name, "fanout", true, false, false, false, nil); err != nil {
		return err
	}
	if _, err := channel.QueueDeclare(q.name, true, false, false, false, q.arguments()); err != nil {
		return err
	}
	return channel.QueueBind(q.name, "", q.name, false, nil)
}

func (q *queue) arguments() amqp.Table { return amqp.Table{amqp.QueueTypeArg: q.kind} }

func (q *queue) Close() error {
	defer q.conn.Close()
	channel, err := q.conn.Channel()
	if err != nil {
		return fmt.Errorf("queue and exchange %s are left: %w", q.name, err)
	}
	_, err = channel.QueueDelete(q.name, false, false, false)
	if err != nil {
		return fmt.Errorf("queue and exchange %s are left: %w", q.name, err)
	}
	return channel.ExchangeDelete(q.name, false, false)
}

// awaitMessages waits until the queue contains at least n messages. Even after all
// confirms this can take a moment, because a quorum queue updates its count late. After
// ten seconds it returns an error.
func (q *queue) awaitMessages(ctx context.Context, n int) error {
	channel, err := q.conn.Channel()
	if err != nil {
		return err
	}
	defer channel.Close()
	patience := time.NewTimer(10 * time.Second)
	defer patience.Stop()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		state, err := channel.QueueDeclarePassive(q.name, true, false, false, false, nil)
		if err != nil {
			return err
		}
		if state.Messages >= n {
			return nil
		}
		select {
		case <-tick.C:
		case <-patience.C:
			return fmt.Errorf("%d messages were confirmed, but %d are in the queue", n, state.Messages)
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (q *queue) purge() error {
	channel, err := q.conn.Channel()
	if err != nil {
		return err
	}
	defer channel.Close()
	_, err = channel.QueuePurge(q.name, false)
	return err
}

func (q *queue) config() wamqp.Config {
	return wamqp.NewDurablePubSubConfig(q.url, wamqp.GenerateQueueNameConstant(q.name))
}

// consumed is like config, but also contains the arguments of the queue. Consumers need
// them, because they declare the queue again.
func (q *queue) consumed() wamqp.Config {
	config := q.config()
	config.Queue.Arguments = q.arguments()
	return config
}

func (q *queue) publish(ctx context.Context, messages []*message.Message) (err error) {
	config := q.config()
	config.Marshaler = rabbit.Marshaler{}
	p, err := rabbit.NewPublisher(config, rabbit.PublisherConfig{})
	if err != nil {
		return err
	}
	defer closing(p, &err)
	if err := publishAll(p, q.name, messages); err != nil {
		return errors.Join(err, ctx.Err())
	}
	return q.awaitMessages(ctx, len(messages))
}
