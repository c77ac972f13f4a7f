package universal

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/durable"
	"github.com/watermill-once/once/rabbit"
	"github.com/watermill-once/once/retry"
)

// The suite passes with outbox, forwarder, RabbitMQ and a durable consumer. A nacked message stays
// in its row and is delivered again. Only messages of the same key keep their order.
func TestDurableConsumer(t *testing.T) {
	broker, s := onRabbit(t)
	run(t, func(t *testing.T, group string, ordered bool) (message.Publisher, message.Subscriber) {
		t.Helper()
		subscriber, err := rabbit.NewSubscriber(ours(broker.URL, group), rabbit.SubscriberConfig{InFlight: 100, CloseTimeout: time.Second})
		if err != nil {
			t.Fatal(err)
		}
		storage, err := durable.New(s.db, durable.Config{})
		if err != nil {
			t.Fatal(err)
		}
		retrying := retry.Config{
			PollInterval: 20 * time.Millisecond, CloseTimeout: time.Second, Lease: 3 * time.Second, Policy: soon,
			ShareConsumer: true, // the subscribers of a group are instances of one service
		}
		if ordered {
			retrying.KeyOrder = retry.BlockWhileRetried
		}
		retries, err := retry.New(s.db, retrying)
		if err != nil {
			t.Fatal(err)
		}
		return publisher{s, ordered}, &named{retries: retries, group: group, sub: storage.Subscriber(lenient{subscriber})}
	})
}

// soon makes nacked rows due again after a short time; no retry middleware
// counts their attempts.
var soon = retry.Policy{Delayed: 1, Base: 10 * time.Millisecond, Max: 10 * time.Millisecond}

// named is a subscriber that uses a separate consumer for each topic. The suite sends one id to
// many topics, and a single consumer would handle this id only once. Like lenient, it accepts that
// messages were nacked.
type named struct {
	retries *retry.Retries
	group   string
	sub     message.Subscriber

	mu     sync.Mutex
	topics []message.Subscriber
}

func (n *named) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	sub := n.retries.Subscriber(n.group+" "+topic, n.sub)
	n.mu.Lock()
	n.topics = append(n.topics, sub)
	n.mu.Unlock()
	return sub.Subscribe(ctx, topic)
}

// SubscribeInitialize implements message.SubscribeInitializer.
func (n *named) SubscribeInitialize(topic string) error {
	if initializer, ok := n.retries.Subscriber(n.group, n.sub).(message.SubscribeInitializer); ok {
		return initializer.SubscribeInitialize(topic)
	}
	return nil
}

func (n *named) Close() error {
	n.mu.Lock()
	topics := slices.Clone(n.topics)
	n.mu.Unlock()
	var (
		closing sync.WaitGroup
		mu      sync.Mutex
		errs    []error
	)
	for _, sub := range append(topics, n.sub) {
		closing.Go(func() {
			if err := sub.Close(); !errors.Is(err, retry.ErrGivenBack) {
				mu.Lock()
				defer mu.Unlock()
				errs = append(errs, err)
			}
		})
	}
	closing.Wait()
	return errors.Join(errs...)
}
