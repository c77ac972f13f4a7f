package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/lib/pq"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/watermill-once/once"
	"github.com/watermill-once/once/dedup"
	"github.com/watermill-once/once/rabbit"
)

// batchSize is the default batch size of the library.
const batchSize = 100

// adding is the type of a function that adds a handler to a router.
type adding func(c *once.Consumer, router *message.Router, topic string, sub message.Subscriber) *message.Handler

// batches measures a consumer with all middlewares, from the queue to the commit. It
// compares a transaction for each message with a transaction for a batch of messages.
func (b *bench) batches(ctx context.Context) ([]row, error) {
	kind := b.kinds[0]
	named := func(id, what string) series {
		return series{id: id, what: "consumer, " + what + ", " + kind, unit: perSecond}
	}
	var (
		each = named("batch-none", "a transaction for each message, one at a time")
		free = named("batch-default", "a transaction for each message, defaults")
		many = named("batch-each", fmt.Sprintf("handler for each message, batches of %d", batchSize))
		sets = named("batch-set", fmt.Sprintf("handler for batches of %d", batchSize))
	)
	err := b.turns(
		ctx,
		single(&each, func(ctx context.Context) (float64, error) { return b.paid(ctx, kind, b.slow, oneAtATime) }),
		single(&free, func(ctx context.Context) (float64, error) { return b.paid(ctx, kind, b.consume, singly) }),
		single(&many, func(ctx context.Context) (float64, error) { return b.paid(ctx, kind, b.messages, sharing) }),
		single(&sets, func(ctx context.Context) (float64, error) { return b.paid(ctx, kind, b.messages, together) }),
	)
	if err != nil {
		return nil, err
	}
	return []row{
		each.row(), free.row(), many.against(each, 5), sets.against(each, 15),
		many.named("-per-default", "handler for each message, as above, against defaults without batches").against(free, 1),
	}, nil
}

func pay(ctx context.Context, tx *sql.Tx, msg *message.Message) ([]*message.Message, error) {
	_, err := tx.ExecContext(ctx, `INSERT INTO payments (order_id, total) VALUES ($1, $2)`, msg.UUID, len(msg.Payload))
	return nil, err
}

func payAll(ctx context.Context, tx *sql.Tx, msgs []*message.Message) ([]*message.Message, error) {
	ids, totals := make([]string, len(msgs)), make([]int64, len(msgs))
	for n, msg := range msgs {
		ids[n], totals[n] = msg.UUID, int64(len(msg.Payload))
	}
	_, err := tx.ExecContext(ctx, `INSERT INTO payments (order_id, total) SELECT * FROM unnest($1::text[], $2::bigint[])`,
		pq.Array(ids), pq.Array(totals))
	return nil, err
}

func oneAtATime(c *once.Consumer, router *message.Router, topic string, sub message.Subscriber) *message.Handler {
	h := c.AddHandler(router, "payments", topic, sub, pay)
	var turn sync.Mutex
	h.AddMiddleware(func(h message.HandlerFunc) message.HandlerFunc {
		return func(msg *message.Message) ([]*message.Message, error) {
			turn.Lock()
			defer turn.Unlock()
			return h(msg)
		}
	})
	return h
}

func singly(c *once.Consumer, router *message.Router, topic string, sub message.Subscriber) *message.Handler {
	return c.AddHandler(router, "payments", topic, sub, pay)
}

func sharing(c *once.Consumer, router *message.Router, topic string, sub message.Subscriber) *message.Handler {
	return c.AddHandlerInBatches(router, "payments", topic, sub, pay)
}

func together(c *once.Consumer, router *message.Router, topic string, sub message.Subscriber) *message.Handler {
	return c.AddBatchHandler(router, "payments", topic, sub, payAll)
}

// paid fills a queue, and returns how many of its messages are handled per second. It
// measures from the start of the router until the last message is committed.
func (b *bench) paid(ctx context.Context, kind string, messages int, add adding) (_ float64, err error) {
	s, err := b.newScene(ctx, kind)
	if err != nil {
		return 0, err
	}
	defer closing(s, &err)
	if err := s.queue.fill(ctx, messages-1); err != nil { // the publisher has sent one more message
		return 0, err
	}
	err = s.exec(ctx, `CREATE TABLE payments (order_id text NOT NULL, total bigint NOT NULL)`, `CHECKPOINT`)
	if err != nil {
		return 0, err
	}
	spent := measureCost(ctx)
	took, err := s.pay(ctx, kind, messages, add)
	if err != nil {
		return 0, err
	}
	spent(messages)
	var paid, left int
	err = s.db.QueryRowContext(ctx, `SELECT (SELECT count(*) FROM payments), (SELECT count(*) FROM once_parked)`).Scan(&paid, &left)
	if err != nil {
		return 0, err
	}
	if paid != messages || left > 0 {
		return 0, fmt.Errorf("of %d messages %d took effect, and %d are parked", messages, paid, left)
	}
	return rate(messages, took), nil
}

// fill publishes the given number of messages. Before them, newPublisher publishes one
// more message. fill returns when all of these messages are in the queue.
func (q *queue) fill(ctx context.Context, messages int) (err error) {
	p, err := newPublisher(q.config(), q.name)
	if err != nil {
		return err
	}
	defer closing(p, &err)
	if err := p.Publish(q.name, newMessages(messages)...); err != nil {
		return err
	}
	return q.awaitMessages(ctx, messages+1)
}

func (s *scene) pay(ctx context.Context, kind string, messages int, add adding) (took time.Duration, err error) {
	c, err := once.NewConsumer(s.db.DB, once.ConsumerConfig{Dedup: dedup.Config{Batch: dedup.Batch{Size: batchSize}}})
	if err != nil {
		return 0, err
	}
	config := s.queue.config()
	config.Queue.Arguments = amqp.Table{"x-queue-type": kind}
	sub, err := rabbit.NewSubscriber(config, rabbit.SubscriberConfig{})
	if err != nil {
		return 0, err
	}
	router, err := message.NewRouter(message.RouterConfig{CloseTimeout: patience}, watermill.NopLogger{})
	if err != nil {
		return 0, errors.Join(err, sub.Close())
	}
	var handled atomic.Int64
	all := make(chan struct{})
	add(c, router, s.queue.name, sub).AddMiddleware(func(h message.HandlerFunc) message.HandlerFunc {
		return func(msg *message.Message) ([]*message.Message, error) {
			produced, err := h(msg)
			if err == nil && handled.Add(1) == int64(messages) {
				close(all)
			}
			return produced, err
		}
	})
	ended := make(chan error, 1)
	start := time.Now()
	go func() { ended <- router.Run(ctx) }()
	select {
	case <-all:
		took = time.Since(start)
	case err := <-ended:
		return 0, errors.Join(errors.New("the consumer ended"), err, ctx.Err())
	}
	return took, errors.Join(router.Close(), <-ended, ctx.Err())
}
