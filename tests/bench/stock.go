package main

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	wsql "github.com/ThreeDotsLabs/watermill-sql/v3/pkg/sql"
	stockforwarder "github.com/ThreeDotsLabs/watermill/components/forwarder"
	"github.com/ThreeDotsLabs/watermill/message"
)

const stockTopic = "events"

// measureStock drains an outbox through Watermill's own forwarder component,
// from the first confirmed message to the last.
func measureStock(ctx context.Context, o options, b *broker, messages int) (rate float64, err error) {
	db, drop, err := freshDatabase(ctx, o)
	if err != nil {
		return 0, err
	}
	defer drop()
	logger := watermill.NopLogger{}
	tables := wsql.DefaultPostgreSQLSchema{}

	stored, err := wsql.NewPublisher(db, wsql.PublisherConfig{SchemaAdapter: tables, AutoInitializeSchema: true}, logger)
	if err != nil {
		return 0, err
	}
	events := stockforwarder.NewPublisher(stored, stockforwarder.PublisherConfig{ForwarderTopic: stockTopic})
	for range messages {
		if err := events.Publish(b.name, newMessage()); err != nil {
			return 0, err
		}
	}

	subscriber, err := wsql.NewSubscriber(db, wsql.SubscriberConfig{
		ConsumerGroup: "bench", SchemaAdapter: tables, OffsetsAdapter: wsql.DefaultPostgreSQLOffsetsAdapter{}, InitializeSchema: true,
	}, logger)
	if err != nil {
		return 0, err
	}
	amqpPublisher, err := wamqp.NewPublisher(b.config(), logger)
	if err != nil {
		return 0, err
	}
	counted := &countingPublisher{Publisher: amqpPublisher, target: int64(messages), done: make(chan struct{})}
	fwd, err := stockforwarder.NewForwarder(subscriber, counted, logger, stockforwarder.Config{ForwarderTopic: stockTopic})
	if err != nil {
		return 0, errors.Join(err, amqpPublisher.Close())
	}
	ended := make(chan error, 1)
	go func() { ended <- fwd.Run(ctx) }()
	select {
	case <-counted.done:
	case err := <-ended:
		return 0, errors.Join(errors.New("the forwarder ended"), err, amqpPublisher.Close())
	case <-ctx.Done():
	}
	took := time.Since(counted.first)
	return float64(messages) / took.Seconds(), errors.Join(fwd.Close(), <-ended, amqpPublisher.Close(), ctx.Err())
}

// countingPublisher notes when the first message is published and when the
// last is confirmed. The stock forwarder calls it from one goroutine.
type countingPublisher struct {
	message.Publisher

	first     time.Time
	confirmed atomic.Int64
	target    int64
	done      chan struct{}
}

func (p *countingPublisher) Publish(topic string, messages ...*message.Message) error {
	if p.first.IsZero() {
		p.first = time.Now()
	}
	if err := p.Publisher.Publish(topic, messages...); err != nil {
		return err
	}
	if p.confirmed.Add(int64(len(messages))) == p.target {
		close(p.done)
	}
	return nil
}
