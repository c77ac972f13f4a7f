package main

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/watermill-once/once/internal/meta"
	"github.com/watermill-once/once/rabbit"
)

// rawWindows lists maximum numbers of unconfirmed messages. Raw publishing is measured
// with each of these numbers, and the best result counts. Larger numbers are not faster.
var rawWindows = []int{500, 1000, 2000}

var errNotConfirmed = errors.New("a message was not confirmed")

// rawChannel publishes with amqp091-go directly, on one connection and one channel. Its
// messages are marshaled before the measurement. They are mandatory, persistent and
// confirmed, as with rabbit.Publisher.
type rawChannel struct {
	queue       *queue
	conn        *amqp.Connection
	channel     *amqp.Channel
	publishings []amqp.Publishing
}

func newRawChannel(q *queue, messages int) (_ *rawChannel, err error) {
	conn, err := amqp.Dial(q.url)
	if err != nil {
		return nil, err
	}
	r := &rawChannel{queue: q, conn: conn, publishings: make([]amqp.Publishing, messages)}
	if r.channel, err = conn.Channel(); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	if err := r.channel.Confirm(false); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	for i := range r.publishings {
		// These messages must have the same size and headers as the messages of the forwarder,
		// because the broker's cost depends on them.
		msg := newMessage()
		now := meta.Stamp(time.Now())
		msg.Metadata[meta.CreatedAt], msg.Metadata[meta.PublishedAt] = now, now
		if r.publishings[i], err = (rabbit.Marshaler{}).Marshal(msg); err != nil {
			return nil, errors.Join(err, conn.Close())
		}
		r.publishings[i].DeliveryMode = amqp.Persistent
	}
	return r, nil
}

func (r *rawChannel) Close() error { return r.conn.Close() }

func (r *rawChannel) publish(ctx context.Context, publishing amqp.Publishing) (*amqp.DeferredConfirmation, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	return r.channel.PublishWithDeferredConfirmWithContext(ctx, r.queue.name, "", true, false, publishing)
}

// pipelined publishes all messages. window is the maximum number of
// messages that are unconfirmed at a time.
func (r *rawChannel) pipelined(ctx context.Context, window int) error {
	outstanding := make(chan *amqp.DeferredConfirmation, window)
	settled := make(chan error, 1)
	go func() {
		var failed error
		for confirmation := range outstanding {
			failed = errors.Join(failed, confirmed(ctx, confirmation))
		}
		settled <- failed
	}()
	var failed error
	for _, publishing := range r.publishings {
		var confirmation *amqp.DeferredConfirmation
		if confirmation, failed = r.publish(ctx, publishing); failed != nil {
			break
		}
		outstanding <- confirmation
	}
	close(outstanding)
	return errors.Join(failed, <-settled)
}

func (r *rawChannel) oneByOne(ctx context.Context) error {
	for _, publishing := range r.publishings {
		confirmation, err := r.publish(ctx, publishing)
		if err != nil {
			return err
		}
		if err := confirmed(ctx, confirmation); err != nil {
			return err
		}
	}
	return nil
}

func confirmed(ctx context.Context, confirmation *amqp.DeferredConfirmation) error {
	ack, err := confirmation.WaitContext(ctx)
	if err == nil && !ack {
		err = errNotConfirmed
	}
	return err
}

// raw measures the highest rate at which the broker confirms messages.
func (b *bench) raw(
	ctx context.Context, kind string, messages int, publish func(ctx context.Context, r *rawChannel) error,
) (_ float64, err error) {
	q, err := newQueue(b.amqpURL, kind)
	if err != nil {
		return 0, err
	}
	defer closing(q, &err)
	r, err := newRawChannel(q, messages)
	if err != nil {
		return 0, err
	}
	defer closing(r, &err)
	spent, start := measureCost(ctx), time.Now()
	if err := publish(ctx, r); err != nil {
		return 0, err
	}
	took := time.Since(start)
	spent(messages)
	return rate(messages, took), q.awaitMessages(ctx, messages)
}

func (b *bench) publisherAlone(ctx context.Context, kind string, messages int) (_ float64, err error) {
	q, err := newQueue(b.amqpURL, kind)
	if err != nil {
		return 0, err
	}
	defer closing(q, &err)
	p, err := newPublisher(q.config(), q.name)
	if err != nil {
		return 0, err
	}
	defer closing(p, &err)
	msgs := newMessages(messages)

	spent, start := measureCost(ctx), time.Now()
	if err := publishAll(p, q.name, msgs); err != nil {
		return 0, errors.Join(err, ctx.Err())
	}
	took := time.Since(start)
	spent(messages)
	return rate(messages, took), q.awaitMessages(ctx, messages+1)
}

// publishAll publishes messages, and waits until each of them was confirmed or refused.
// It returns the first error.
func publishAll(p *rabbit.Publisher, topic string, messages []*message.Message) error {
	var (
		failure atomic.Pointer[error]
		settled sync.WaitGroup
	)
	settled.Add(len(messages))
	for _, msg := range messages {
		p.PublishAsync(topic, msg, func(err error) {
			if err != nil {
				failure.CompareAndSwap(nil, &err)
			}
			settled.Done()
		})
	}
	settled.Wait()
	if failed := failure.Load(); failed != nil {
		return *failed
	}
	return nil
}
