package service

import (
	"context"
	"database/sql"
	"log/slog"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once"
	"github.com/watermill-once/once/dedup"
	"github.com/watermill-once/once/forwarder"
	"github.com/watermill-once/once/retry"
)

// Config is what a [Service] can be told. The zero value is ready for use.
type Config struct {
	// Retry is when failing messages are tried again. Defaults to retry's own.
	Retry retry.Policy

	// Lease is how long what a process was doing when it died stays undone.
	// Defaults to 5 seconds.
	Lease time.Duration

	// KeyTimeout is how long a request waits for an earlier one with the same
	// Idempotency-Key that is still under way. Not used with SQLite, which has
	// its busy_timeout. Defaults to 5 seconds.
	KeyTimeout time.Duration

	// StopTimeout is how long each of the parts may take to end: HTTP, the
	// consumers, the forwarder. Together they should stay under the time that
	// whoever stops the service gives it. Defaults to 5 seconds.
	StopTimeout time.Duration

	// Logger defaults to slog's.
	Logger *slog.Logger

	// Hooks are for the demo's faults.
	Hooks Hooks
}

// Hooks are where the demo injects its faults. A real service has no need of
// them.
type Hooks struct {
	// Handler wraps the handler of a consumer.
	Handler func(consumer string, handle once.HandlerFunc) once.HandlerFunc

	// Forwarder stands in for forwarder.New.
	Forwarder func(pool *sql.DB, publisher message.Publisher, config forwarder.Config) (Forwarder, error)
}

// hookedBatch has each message pass the hook of handlers before all of them are
// handled.
func (s *Service) hookedBatch(consumer string, handle dedup.BatchHandlerFunc) dedup.BatchHandlerFunc {
	if s.hooks.Handler == nil {
		return handle
	}
	hook := s.hooks.Handler(consumer, func(context.Context, *sql.Tx, *message.Message) ([]*message.Message, error) {
		return nil, nil
	})
	return func(ctx context.Context, tx *sql.Tx, msgs []*message.Message) ([]*message.Message, error) {
		for _, msg := range msgs {
			if _, err := hook(ctx, tx, msg); err != nil {
				return nil, err
			}
		}
		return handle(ctx, tx, msgs)
	}
}

// Forwarder is what the service needs of a forwarder.Forwarder.
type Forwarder interface {
	Run(ctx context.Context) error
	Running() <-chan struct{}
	Hint()
	Close() error
}

func (c Config) withDefaults() Config {
	if c.Lease == 0 {
		c.Lease = 5 * time.Second
	}
	if c.KeyTimeout == 0 {
		c.KeyTimeout = 5 * time.Second
	}
	if c.StopTimeout == 0 {
		c.StopTimeout = 5 * time.Second
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	if c.Hooks.Forwarder == nil {
		c.Hooks.Forwarder = func(pool *sql.DB, publisher message.Publisher, config forwarder.Config) (Forwarder, error) {
			return forwarder.New(pool, publisher, config)
		}
	}
	return c
}
