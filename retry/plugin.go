package retry

import (
	"context"

	"github.com/watermill-once/once/internal/start"
)

// Part describes the retries to once.Plugin.
func (r *Retries) Part() start.Part {
	return start.Part{
		Name: "retry", DB: r.store.DB(), Schema: r.config.Schema, Logger: r.config.Logger,
		Tables:      []string{"inbox", "parked", "replays", "consumers", "consumer_instances"},
		Concurrency: r.config.Concurrency, LongestDelay: r.config.LongestDelay(),
	}
}

// ConsumerName returns the consumer name given to [Retries.Subscriber].
func (s *subscriber) ConsumerName() string { return s.consumer }

// SharesConsumer reports whether other handlers may use the same consumer name, see
// Config.ShareConsumer.
func (s *subscriber) SharesConsumer() bool { return s.retries.config.ShareConsumer }

// Ping checks that the broker of the wrapped subscriber accepts the connection.
// It returns nil if the subscriber has no Ping method.
func (s *subscriber) Ping(ctx context.Context) error { return start.Ping(ctx, s.sub) }
