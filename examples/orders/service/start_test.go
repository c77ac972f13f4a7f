package service_test

import (
	"context"
	"database/sql"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/examples/orders/service"
	"github.com/watermill-once/once/forwarder"
)

// gated is a transport that calls gate before each subscription.
type gated struct {
	service.Transport

	gate func(ctx context.Context)
}

func (g gated) Subscriber(to service.Subscription) (message.Subscriber, error) {
	subscriber, err := g.Transport.Subscriber(to)
	return gatedSubscriber{subscriber, g.gate}, err
}

type gatedSubscriber struct {
	message.Subscriber

	gate func(ctx context.Context)
}

func (g gatedSubscriber) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	g.gate(ctx)
	return g.Subscriber.Subscribe(ctx, topic)
}

func startGated(t *testing.T, gate func(ctx context.Context), configure ...func(*service.Config)) *running {
	t.Helper()
	database := sqlite(t)
	if err := database.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	transport, err := service.NewEmbedded(database)
	if err != nil {
		t.Fatal(err)
	}
	return startOn(t, database, gated{transport, gate}, configure...)
}

// observed is a forwarder. Its method Run closes the channel in the field run.
type observed struct {
	service.Forwarder

	run chan struct{}
}

func (f observed) Run(ctx context.Context) error {
	close(f.run)
	return f.Forwarder.Run(ctx)
}

// The forwarder starts only after all consumers have subscribed. Otherwise the broker
// could refuse an event whose queue does not exist yet.
func TestForwardingStartsWhenAllAreSubscribed(t *testing.T) {
	t.Parallel()
	run := make(chan struct{})
	r := startGated(t, func(context.Context) {
		select {
		case <-run:
			t.Error("the forwarder runs, and not all consumers are subscribed")
		case <-time.After(20 * time.Millisecond):
		}
	}, func(c *service.Config) {
		c.Hooks.Forwarder = func(pool *sql.DB, publisher message.Publisher, config forwarder.Config) (service.Forwarder, error) {
			f, err := forwarder.New(pool, publisher, config)
			return observed{f, run}, err
		}
	})
	<-run
	if err := r.stop(); err != nil {
		t.Error(err)
	}
}

// The service can be stopped while it waits for the broker's answer to a subscription.
func TestStopWhileSubscribing(t *testing.T) {
	t.Parallel()
	subscribing := make(chan struct{}, len(service.Subscriptions()))
	r := startGated(t, func(ctx context.Context) {
		subscribing <- struct{}{}
		<-ctx.Done()
	})
	<-subscribing
	if err := r.stop(); err != nil {
		t.Error(err)
	}
}
