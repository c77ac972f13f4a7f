package durable

import (
	"context"

	"github.com/watermill-once/once/internal/start"
)

// Part describes the intake to once.Plugin.
func (i *Storage) Part() start.Part {
	return start.Part{
		Name: "durable", DB: i.store.DB(), Schema: i.config.Schema, Logger: i.config.Logger,
		Tables: []string{"inbox", "parked", "replays"},
	}
}

// Ping asks the wrapped subscriber whether its broker lets it in. A subscriber
// that cannot say is taken to be let in.
func (s *subscriber) Ping(ctx context.Context) error { return start.Ping(ctx, s.sub) }
