package main

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	wsql "github.com/ThreeDotsLabs/watermill-sql/v3/pkg/sql"
	stockforwarder "github.com/ThreeDotsLabs/watermill/components/forwarder"
	"github.com/ThreeDotsLabs/watermill/message"
)

const stockTopic = "events"

func (s *scene) fillStock(ctx context.Context, messages int) error {
	stored, err := wsql.NewPublisher(s.db.DB, wsql.PublisherConfig{
		SchemaAdapter: wsql.DefaultPostgreSQLSchema{}, AutoInitializeSchema: true,
	}, watermill.NopLogger{})
	if err != nil {
		return err
	}
	events := stockforwarder.NewPublisher(stored, stockforwarder.PublisherConfig{ForwarderTopic: stockTopic})
	for range messages {
		if err := errors.Join(ctx.Err(), events.Publish(s.queue.name, newMessage())); err != nil {
			return err
		}
	}
	return s.exec(ctx, `VACUUM ANALYZE`, `CHECKPOINT`)
}

// stockForwarding is Watermill's own forwarder, and a count of its confirmed messages.
type stockForwarding struct {
	fwd       *stockforwarder.Forwarder
	publisher *stockCounted
	ended     chan error
}

// forwardStock returns Watermill's forwarder. Its publisher waits for confirms and uses a
// pool of channels. All other settings are the defaults.
func (s *scene) forwardStock(target int) (*stockForwarding, error) {
	logger := watermill.NopLogger{}
	subscriber, err := wsql.NewSubscriber(s.db.DB, wsql.SubscriberConfig{
		ConsumerGroup:    "bench",
		SchemaAdapter:    wsql.DefaultPostgreSQLSchema{},
		OffsetsAdapter:   wsql.DefaultPostgreSQLOffsetsAdapter{},
		InitializeSchema: true,
	}, logger)
	if err != nil {
		return nil, err
	}
	config := s.queue.config()
	config.Publish.ConfirmDelivery = true
	config.Publish.ChannelPoolSize = 10
	publisher, err := wamqp.NewPublisher(config, logger)
	if err != nil {
		return nil, err
	}
	f := &stockForwarding{
		publisher: &stockCounted{Publisher: publisher, target: int64(target), reached: make(chan struct{})},
		ended:     make(chan error, 1),
	}
	f.fwd, err = stockforwarder.NewForwarder(subscriber, f.publisher, logger, stockforwarder.Config{ForwarderTopic: stockTopic})
	if err != nil {
		return nil, errors.Join(err, publisher.Close())
	}
	return f, nil
}

func (f *stockForwarding) start(ctx context.Context) {
	go func() { f.ended <- f.fwd.Run(ctx) }()
}

// await waits until the target number of messages was confirmed, but no longer than
// limit. It reports whether this number was reached.
func (f *stockForwarding) await(ctx context.Context, limit time.Duration) (reached bool, err error) {
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-f.publisher.reached:
		return true, nil
	case <-timer.C:
		return false, nil
	case err := <-f.ended:
		f.ended <- err
		return false, errors.Join(errors.New("the forwarder ended"), err, ctx.Err())
	case <-ctx.Done():
		return false, ctx.Err()
	}
}

func (f *stockForwarding) Close() error {
	return errors.Join(f.fwd.Close(), <-f.ended, f.publisher.Close())
}

// stockCounted counts confirmed messages, and records the times of the first publish
// and of the confirm that reaches the target. It needs no lock, because Watermill's
// forwarder calls it from one goroutine.
type stockCounted struct {
	message.Publisher

	target    int64
	confirmed atomic.Int64
	first     time.Time
	last      time.Time // set before reached is closed
	reached   chan struct{}
}

func (p *stockCounted) Publish(topic string, messages ...*message.Message) error {
	if p.first.IsZero() {
		p.first = time.Now()
	}
	if err := p.Publisher.Publish(topic, messages...); err != nil {
		return err
	}
	if p.confirmed.Add(int64(len(messages))) == p.target {
		p.last = time.Now()
		close(p.reached)
	}
	return nil
}

func (b *bench) stockDrain(ctx context.Context, kind string) (_ float64, err error) {
	s, err := b.newScene(ctx, kind)
	if err != nil {
		return 0, err
	}
	defer closing(s, &err)
	if err := s.fillStock(ctx, b.slow); err != nil {
		return 0, err
	}
	f, err := s.forwardStock(b.slow)
	if err != nil {
		return 0, err
	}
	defer closing(f, &err)
	spent := measureCost(ctx)
	f.start(ctx)
	if reached, err := f.await(ctx, stockPatience); err != nil {
		return 0, err
	} else if !reached {
		return 0, fmt.Errorf("%d of %d messages were forwarded within %v", f.publisher.confirmed.Load(), b.slow, stockPatience)
	}
	spent(b.slow)
	return rate(b.slow, f.publisher.last.Sub(f.publisher.first)), s.queue.awaitMessages(ctx, b.slow)
}

// stockPatience is how long a run may take before it fails.
const stockPatience = 10 * time.Minute
