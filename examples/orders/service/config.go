package service

import (
	"context"
	"database/sql"
	"log/slog"
	"net/http"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once"
	"github.com/watermill-once/once/console"
	"github.com/watermill-once/once/dedup"
	"github.com/watermill-once/once/forwarder"
	"github.com/watermill-once/once/retry"
)

// Config configures a [Service]. The zero value is ready for use.
type Config struct {
	// Services are the services to run: [Orders], [Payments], or both. If both use one
	// database, the transport treats them as one service. Defaults to both.
	Services []string

	// Retry says when a failed message is tried again. Defaults to the default policy
	// of package retry.
	Retry retry.Policy

	// Breaker pauses a consumer while the company that its handler calls is down. Defaults to
	// nil: there is no breaker.
	Breaker *retry.Breaker

	// Lease is the time after which another process continues the work of a process that
	// has died. Defaults to 5 seconds.
	Lease time.Duration

	// KeyTimeout is how long a request waits for an earlier request that has the
	// same Idempotency-Key. SQLite ignores it, because it has one writer at a time.
	// Defaults to 5 seconds.
	KeyTimeout time.Duration

	// StopTimeout is how long each part may take to stop: HTTP, the consumers, the
	// forwarder. The sum should be shorter than the time that the orchestrator gives a
	// process to stop. Defaults to 5 seconds.
	StopTimeout time.Duration

	// Metrics serves GET /metrics. Defaults to nil, and the path then returns 404.
	Metrics http.Handler

	// Operators decides who may do which action in the console at /console/. Defaults to
	// console.ReadOnly: everybody may read, and nobody may change anything.
	Operators func(r *http.Request, action console.Action) (actor string, err error)

	// Logger defaults to slog's default logger.
	Logger *slog.Logger

	// Hooks let the demo inject faults. Defaults to none.
	Hooks Hooks
}

// Hooks lets the demo inject faults. Your service does not need it.
type Hooks struct {
	// Handler wraps the handler of a consumer.
	Handler func(consumer string, handle once.HandlerFunc) once.HandlerFunc

	// Forwarder replaces forwarder.New.
	Forwarder func(pool *sql.DB, publisher message.Publisher, config forwarder.Config) (Forwarder, error)
}

// hookedBatch returns a handler that calls the hook for each message before it calls
// the given handler.
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

// Forwarder contains the methods of forwarder.Forwarder that the service calls.
type Forwarder interface {
	Run(ctx context.Context) error
	Running() <-chan struct{}
	Hint()
	Close() error
}

func (c Config) withDefaults() Config {
	if len(c.Services) == 0 {
		c.Services = []string{Orders, Payments}
	}
	if c.Lease == 0 {
		c.Lease = 5 * time.Second
	}
	if c.KeyTimeout == 0 {
		c.KeyTimeout = 5 * time.Second
	}
	if c.StopTimeout == 0 {
		c.StopTimeout = 5 * time.Second
	}
	if c.Metrics == nil {
		c.Metrics = http.NotFoundHandler()
	}
	if c.Operators == nil {
		c.Operators = console.ReadOnly
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
