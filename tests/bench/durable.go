package main

import (
	"context"
	"fmt"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once"
	"github.com/watermill-once/once/rabbit"
	"github.com/watermill-once/once/retry"
)

// storedTogether is the number of messages that a durable consumer stores in one
// transaction.
const storedTogether = 500

// durables measures the gain and the cost of a durable consumer.
func (b *bench) durables(ctx context.Context) ([]row, error) {
	var (
		direct  = series{id: "consume-direct", what: fmt.Sprintf("once.Consumer, %d in flight, %s", inFlight, b.kinds[0]), unit: perSecond}
		durable = series{id: "consume-durable", what: "the same through the durable inbox", unit: perSecond}
		raw     = series{id: "store-raw", what: fmt.Sprintf("raw inserts of %d rows", storedTogether), unit: perSecond}
		stores  = series{id: "store-inbox", what: "the same messages stored in the durable inbox", unit: perSecond}
		done    = effects{orders: b.consume, inbox: b.consume}
	)
	err := b.turns(
		ctx,
		single(&direct, func(ctx context.Context) (float64, error) {
			return b.consumed(ctx, b.consume, chain(rabbit.SubscriberConfig{InFlight: inFlight}), done)
		}),
		single(&durable, func(ctx context.Context) (float64, error) { return b.consumed(ctx, b.consume, storedFirst, done) }),
		single(&raw, func(ctx context.Context) (float64, error) { return b.storeRaw(ctx, b.messages) }),
		single(&stores, func(ctx context.Context) (float64, error) { return b.storeInbox(ctx, b.messages) }),
	)
	if err != nil {
		return nil, err
	}
	return []row{direct.row(), durable.against(direct, 0.95), raw.row(), stores.against(raw, 0.7)}, nil
}

// storedFirst adds a durable consumer to router.
func storedFirst(s *scene, router *message.Router) error {
	// While one batch is stored, the next one is collected.
	subscriber, err := s.subscriber(rabbit.SubscriberConfig{InFlight: 2 * storedTogether})
	if err != nil {
		return err
	}
	consumer, err := once.NewConsumer(s.db.DB, once.ConsumerConfig{
		DurableConsumers: []string{consumerName},
		Retry:            retry.Config{Concurrency: inFlight},
	})
	if err != nil {
		return err
	}
	consumer.AddHandler(router, consumerName, s.queue.name, subscriber, handled)
	return nil
}
