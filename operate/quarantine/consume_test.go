package quarantine_test

import (
	"context"
	"database/sql"
	"errors"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/dedup"
	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/poison"
	"github.com/watermill-once/once/retry"
	"github.com/watermill-once/once/schema"
)

// silent is a transport that delivers nothing.
type silent struct{ closed chan struct{} }

// The subscription also ends with ctx, because a router that closes cancels ctx, and
// does not always call Close.
func (s silent) Subscribe(ctx context.Context, _ string) (<-chan *message.Message, error) {
	out := make(chan *message.Message)
	go func() {
		select {
		case <-s.closed:
		case <-ctx.Done():
		}
		close(out)
	}()
	return out, nil
}

func (s silent) Close() error {
	close(s.closed)
	return nil
}

// consume runs a consumer with the middlewares poison, retry and dedup until end is
// called. The consumer gets only parked messages.
func consume(
	db *sql.DB, config schema.Config, store *poison.Store, consumer string, h message.NoPublishHandlerFunc,
) (end func() error, err error) {
	retries, err := retry.New(db, retry.Config{
		Schema: config, Policy: retry.Policy{Immediate: -1, Delayed: -1}, PollInterval: 5 * time.Millisecond, Lease: time.Second,
	})
	if err != nil {
		return nil, err
	}
	inbox, err := dedup.New(db, dedup.Config{Schema: config})
	if err != nil {
		return nil, err
	}
	router, err := message.NewRouter(message.RouterConfig{CloseTimeout: time.Minute}, watermill.NopLogger{})
	if err != nil {
		return nil, err
	}
	router.AddMiddleware(store.Middleware, retries.Middleware, inbox.Middleware)
	router.AddConsumerHandler(consumer, "orders.placed", retries.Subscriber(consumer, silent{make(chan struct{})}), h)
	stopped := kit.Go(func() error { return router.Run(context.Background()) })
	<-router.Running()
	return func() error { return errors.Join(router.Close(), <-stopped) }, nil
}

func (b *bench) consume(consumer string, h message.NoPublishHandlerFunc) {
	b.Helper()
	end, err := consume(b.DB, b.Config, b.poison, consumer, h)
	kit.OK(b, err)
	b.Cleanup(func() {
		kit.Check(b, end())
	})
}
