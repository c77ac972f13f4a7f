package durable

import (
	"context"

	"github.com/watermill-once/once/internal/start"
)

// Part describes the storage to once.Plugin.
func (s *Storage) Part() start.Part {
	return start.Part{
		Name: "durable", DB: s.store.DB(), Schema: s.config.Schema, Logger: s.config.Logger,
		Tables: []string{"inbox", "parked", "replays"},
	}
}

// Ping checks that the broker of the wrapped subscriber accepts the connection.
// It returns nil if the subscriber has no Ping method.
func (s *subscriber) Ping(ctx context.Context) error { return start.Ping(ctx, s.sub) }
