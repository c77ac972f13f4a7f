package durable

import (
	"context"
	"math"

	"github.com/watermill-once/once/internal/start"
)

// Part describes the storage to once.Plugin.
func (s *Storage) Part() start.Part {
	return start.Part{
		Name: "durable", DB: s.store.DB(), Schema: s.config.Schema, Logger: s.config.Logger,
		Tables: []string{"inbox", "parked", "replays"},
	}
}

// InFlight returns no limit, because handlers get messages from the table, not from the
// wrapped subscriber.
func (s *subscriber) InFlight() (limit int, automatic bool) { return math.MaxInt, true }

// Ping checks that the broker of the wrapped subscriber accepts the connection. If the
// wrapped subscriber has no Ping method, it returns nil.
func (s *subscriber) Ping(ctx context.Context) error { return start.Ping(ctx, s.sub) }
