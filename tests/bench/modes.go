package main

import (
	"context"
	"fmt"
	"strconv"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once"
	"github.com/watermill-once/once/rabbit"
	"github.com/watermill-once/once/retry"
	"github.com/watermill-once/once/sequence"
)

// keysOfModes is the number of ordering keys, and of aggregates. They are assigned to the messages
// in rotation.
const keysOfModes = 1000

// modes measures how much slower a consumer is when it keeps the order of keys or of versions.
func (b *bench) modes(ctx context.Context) ([]row, error) {
	var (
		none  = series{id: "modes-default", what: fmt.Sprintf("once.Consumer, %d in flight, %s", inFlight, b.kinds[0])}
		order = series{id: "modes-order", what: fmt.Sprintf("the same in the order of %d keys", keysOfModes)}
		newer = series{id: "modes-newer", what: fmt.Sprintf("the same, older versions of %d aggregates ignored", keysOfModes)}
		all   = series{id: "modes-gap", what: "the same, versions applied without a gap"}
	)
	mode := func(into *series, flight int, config once.ConsumerConfig) measurement {
		into.unit = perSecond
		return single(into, func(ctx context.Context) (float64, error) { return b.placed(ctx, flight, config) })
	}
	err := b.turns(
		ctx,
		mode(&none, inFlight, once.ConsumerConfig{}),
		mode(&order, 2*batchSize, once.ConsumerConfig{Retry: retry.Config{KeyOrder: retry.BlockWhileRetried, Concurrency: inFlight}}),
		mode(&newer, inFlight, once.ConsumerConfig{Sequence: &sequence.Config{}}),
		mode(&all, inFlight, once.ConsumerConfig{Sequence: &sequence.Config{Policy: sequence.HoldForGap, First: sequence.FromOne}}),
	)
	if err != nil {
		return nil, err
	}
	return []row{none.row(), order.against(none, 0), newer.against(none, 0), all.against(none, 0)}, nil
}

// placed measures a consumer whose messages have an ordering key and a version, even if
// its configuration ignores them.
func (b *bench) placed(ctx context.Context, flight int, config once.ConsumerConfig) (_ float64, err error) {
	s, err := b.newConsumerScene(ctx, b.kinds[0])
	if err != nil {
		return 0, err
	}
	defer closing(s, &err)
	messages := newMessages(b.slow)
	for n, msg := range messages {
		key := strconv.Itoa(n % keysOfModes)
		msg.Metadata.Set("once_ordering_key", key)
		msg.Metadata.Set("once_aggregate_type", "order")
		msg.Metadata.Set("once_aggregate_id", key)
		msg.Metadata.Set("once_aggregate_version", strconv.Itoa(n/keysOfModes+1))
	}
	took, err := s.consume(ctx, messages, func(s *scene, router *message.Router) error {
		subscriber, err := s.subscriber(rabbit.SubscriberConfig{InFlight: flight})
		if err != nil {
			return err
		}
		consumer, err := once.NewConsumer(s.db.DB, config)
		if err != nil {
			return err
		}
		consumer.AddHandler(router, consumerName, s.queue.name, subscriber, handled)
		return nil
	})
	if err != nil {
		return 0, err
	}
	return rate(len(messages), took), s.hasEffects(ctx, effects{orders: len(messages), inbox: len(messages)})
}
